package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Capabilities are what a driver says of itself in its answer to init.
type Capabilities struct {
	// Attach: volumes are attached to a node before they are mounted there.
	Attach bool `json:"attach"`
	// SELinuxRelabel: files may be relabelled for a pod.
	SELinuxRelabel bool `json:"selinuxRelabel"`
	// SupportsMetrics: the mounted file system's numbers are the volume's.
	SupportsMetrics bool `json:"supportsMetrics"`
	// FSGroup: files may be given to a pod's fsGroup.
	FSGroup bool `json:"fsGroup"`
	// RequiresFSResize: the node has a part to do when a volume has grown.
	RequiresFSResize bool `json:"requiresFSResize"`
}

// DefaultCapabilities are those of a driver that does not say otherwise, as in Kubernetes.
func DefaultCapabilities() Capabilities {
	return Capabilities{Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true}
}

// Answer is a driver's answer to a call that has succeeded.
type Answer struct {
	// Message is one line without control characters.
	Message string
	// Device is where a volume was attached; empty: nowhere, or the driver does not say.
	Device string
	// Attached is isattached's.
	Attached bool
	// NewSize is expandvolume's, in bytes; 0: the driver does not say.
	NewSize int64
	// Capabilities are init's.
	Capabilities Capabilities
}

const (
	// maxOutput is how much a driver may answer, in bytes.
	maxOutput = 64 << 10
	// maxMessage and maxDevice are the longest texts that are kept of an answer, in bytes.
	maxMessage = 500
	maxDevice  = 1024
)

// errNotSupported and failure are the two answers that are no success.
var errNotSupported = errors.New("the driver does not support the call")

type failure string

func (f failure) Error() string { return string(f) }

// Parse reads a driver's answer, which must be one JSON object and nothing else. An answer of
// status "Failure" is a failure with the driver's message, "Not supported" is
// errNotSupported. Every other error says what is wrong with the answer, without its text.
func Parse(output []byte) (Answer, error) {
	if len(output) > maxOutput {
		return Answer{}, fmt.Errorf("it is longer than %d bytes", maxOutput)
	}
	var given struct {
		Status        string
		Message       string
		Device        string
		Attached      bool
		VolumeNewSize int64
		Capabilities  *Capabilities
	}
	capabilities := DefaultCapabilities()
	given.Capabilities = &capabilities
	text := bytes.TrimSpace(output)
	if len(text) == 0 || text[0] != '{' {
		return Answer{}, errors.New("it is no JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&given); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return Answer{}, fmt.Errorf("its field %.40q is a %.20s", wrong.Field, wrong.Value)
		}
		return Answer{}, errors.New("it is no JSON object")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Answer{}, errors.New("something comes after its JSON object")
	}
	switch given.Status {
	case "Success":
	case "Failure":
		return Answer{}, failure(oneLine(given.Message))
	case "Not supported":
		return Answer{}, errNotSupported
	default:
		return Answer{}, errors.New("its status is none of Success, Failure and Not supported")
	}
	if given.Capabilities == nil { // null
		given.Capabilities = &capabilities
	}
	answer := Answer{Message: oneLine(given.Message), Device: given.Device, Attached: given.Attached, NewSize: given.VolumeNewSize, Capabilities: *given.Capabilities}
	return answer, answer.check()
}

func (a *Answer) check() error {
	if len(a.Device) > maxDevice || !utf8.ValidString(a.Device) || strings.ContainsFunc(a.Device, unicode.IsControl) || strings.HasPrefix(a.Device, "-") {
		return errors.New("its device is no path")
	}
	if a.NewSize < 0 {
		return errors.New("its volumeNewSize is negative")
	}
	return nil
}

// oneLine returns a text as one line of what can be printed.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// short cuts a line to what an error may have of it.
func short(line string) string {
	if len(line) <= maxMessage {
		return line
	}
	return strings.ToValidUTF8(line[:maxMessage], "") + "…"
}
