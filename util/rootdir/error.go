package rootdir

import "fmt"

// Error says that another user could lead the program astray.
type Error struct {
	// Path is the component of the path that is not to be relied on.
	Path string
	// Owner is its owner's id.
	Owner int
	// Reason says why it is refused, Advice what to do if it is to be used all the same.
	Reason, Advice string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s, and could lead to files that are not podvol's: use another directory, or %s", e.Path, e.Reason, e.Advice)
}

func foreign(path string, owner uint32) *Error {
	return &Error{Path: path, Owner: int(owner), Reason: fmt.Sprintf("belongs to another user (uid %d)", owner),
		Advice: "come as that user"}
}

func open(path string, owner, mode uint32) *Error {
	return &Error{Path: path, Owner: int(owner), Reason: fmt.Sprintf("can be changed by others (mode %#o)", mode&0o7777),
		Advice: fmt.Sprintf("check its contents and take that away (chmod go-w %s)", path)}
}

func misplaced(path string, owner uint32, what, wanted string) *Error {
	return &Error{Path: path, Owner: int(owner), Reason: fmt.Sprintf("is a %s where a %s should be (of uid %d)", what, wanted, owner),
		Advice: "find out who put it there, and remove it"}
}
