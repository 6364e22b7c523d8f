package mount

func (c Cause) advice(*Error) string { return "" }

func causeOf(error) Cause { return ErrUnknown }
