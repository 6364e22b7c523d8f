package sandbox

import (
	"encoding/json"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
)

// childName is how the child knows what it is: its first argument, which no
// shell gives by accident and no environment hands down.
const childName = "podvol-sandbox"

// The child's descriptors.
const (
	orderFD  = 3 // its order, by a pipe that the parent holds open while it lives
	answerFD = 4 // what became of it
	firstFD  = 5 // the copies of idmapped mounts
)

// order is what the parent tells the child.
type order struct {
	Args, Env         []string
	Dir, Root         string
	Mounts            []orderedMount
	NewUser           bool       // it is in a user namespace of its own
	Builder           Credential // the ids there by which mounts are made
	PIDNamespace      bool
	Credential        *Credential
	LimitCapabilities bool // to Capabilities, which may be none
	Capabilities      []string
	NoNewPrivileges   bool
}

// orderedMount is a Mount, and where the parent has copied it already the
// copy's descriptor.
type orderedMount struct {
	Mount
	Tree int
}

// sentOrder is an order on its way by JSON. JSON's strings are Unicode, but paths,
// arguments and variables are any bytes: the fields here hide the order's.
type sentOrder struct {
	order
	Args, Env [][]byte
	Dir, Root []byte
	Mounts    []sentMount
}

// sentMount is one of its mounts.
type sentMount struct {
	orderedMount
	Volume, Source, Destination []byte
}

func (o *order) send(to io.Writer) error {
	sent := sentOrder{order: *o, Args: converted[[]byte](o.Args), Env: converted[[]byte](o.Env), Dir: []byte(o.Dir), Root: []byte(o.Root)}
	for _, m := range o.Mounts {
		sent.Mounts = append(sent.Mounts, sentMount{m, []byte(m.Volume), []byte(m.Source), []byte(m.Destination)})
	}
	return json.NewEncoder(to).Encode(sent)
}

func receiveOrder(from io.Reader) (*order, error) {
	var sent sentOrder
	if err := json.NewDecoder(from).Decode(&sent); err != nil {
		return nil, err
	}
	o := &sent.order
	o.Args, o.Env, o.Dir, o.Root = converted[string](sent.Args), converted[string](sent.Env), string(sent.Dir), string(sent.Root)
	for _, m := range sent.Mounts {
		m.orderedMount.Volume, m.orderedMount.Source, m.orderedMount.Destination = string(m.Volume), string(m.Source), string(m.Destination)
		o.Mounts = append(o.Mounts, m.orderedMount)
	}
	return o, nil
}

// converted are the same texts of another type.
func converted[To, From string | []byte](texts []From) []To {
	var all []To
	for _, text := range texts {
		all = append(all, To(text))
	}
	return all
}

// answer is one line from the child: that it executes the program now, and then
// only if that failed, or before if something else did, why.
type answer struct {
	Executes bool       `json:",omitempty"`
	Failed   *sentError `json:",omitempty"`
}

// sentError is an *Error on its way.
type sentError struct {
	Op, Volume, Destination, Path, Advice, Text string
	Cause                                       Cause
	Errno                                       unix.Errno
}

func send(err *Error) *sentError {
	s := &sentError{Op: err.Op, Volume: err.Volume, Destination: err.Destination, Path: err.Path, Advice: err.Advice, Cause: err.Cause}
	if err.Err != nil {
		s.Text = err.Err.Error()
	}
	if errno, ok := errors.AsType[unix.Errno](err.Err); ok {
		s.Errno = errno
	}
	return s
}

func (s *sentError) received() *Error {
	e := &Error{Op: s.Op, Volume: s.Volume, Destination: s.Destination, Path: s.Path, Advice: s.Advice, Cause: s.Cause}
	if s.Text != "" || s.Errno != 0 {
		e.Err = &farError{s.Text, s.Errno}
	}
	return e
}

// farError is an error of the child's: its text, and its errno for errors.Is.
type farError struct {
	text  string
	errno unix.Errno
}

func (e *farError) Error() string { return e.text }

func (e *farError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// readAnswer reads until the child executes its program, which closes the pipe,
// or ends.
func readAnswer(from io.Reader) (executes bool, failure *Error) {
	decoder := json.NewDecoder(from)
	for {
		var a answer
		if err := decoder.Decode(&a); err != nil {
			return executes, failure
		}
		executes = executes || a.Executes
		if a.Failed != nil {
			failure = a.Failed.received()
		}
	}
}

// isMapped reports whether the namespace has an id.
func isMapped(mappings []host.IDMapping, id uint32) bool {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return true
		}
	}
	return false
}
