package host

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// maxSecret is how long a secret may be, in bytes, to go through a pipe before
// the helper reads it. Helpers take less.
const maxSecret = 4096

// secretFD is the descriptor by which a helper gets a secret: the first after
// the standard ones.
const secretFD = 3

// handover is how the sensitive options of a request reach a helper.
type handover struct {
	// args go on the argument list, env is added to the environment.
	args, env []string
	// secret goes through descriptor secretFD, if piped is set.
	secret string
	piped  bool
}

// handOver keeps secrets out of the argument list, which every user can read,
// for helpers that take them otherwise: mount.cifs a password from the
// descriptor that $PASSWD_FD names and a user name from $USER (mount.cifs(8)),
// mount.ceph a key from a file (secretfile, mount.ceph(8)). The environment of a
// process is open to root and its own user only (proc_pid_environ(5)). All
// other types, and these without their helper, get the options as they are.
func (c Config) handOver(r mount.Request) handover {
	h := handover{args: r.Sensitive}
	if !c.hasHelper(r.FSType) {
		return h
	}
	switch fstypes.Family(r.FSType) {
	case "cifs":
		h.cifs()
	case "ceph":
		h.ceph()
	}
	return h
}

func (h *handover) cifs() {
	h.take(func(name, value string) bool {
		switch name {
		case "password", "passwd", "pass":
			return h.pipe(value)
		case "username", "user":
			// mount.cifs looks for a password behind a percent sign in $USER.
			if value == "" || strings.Contains(value, "%") {
				return false
			}
			h.env = append(h.env, "USER="+value)
			return true
		}
		return false
	})
	if h.piped {
		h.env = append(h.env, fmt.Sprintf("PASSWD_FD=%d", secretFD))
	}
}

func (h *handover) ceph() {
	h.take(func(name, value string) bool { return name == "secret" && h.pipe(value) })
	if h.piped {
		h.args = append(h.args, fmt.Sprintf("secretfile=/proc/self/fd/%d", secretFD))
	}
}

// pipe reports whether a secret fits; of several the last counts, as it would
// on the argument list.
func (h *handover) pipe(value string) bool {
	if len(value) > maxSecret {
		return false
	}
	h.secret, h.piped = value, true
	return true
}

// take leaves in args what taken does not take.
func (h *handover) take(taken func(name, value string) bool) {
	var rest []string
	for _, element := range h.args {
		for _, option := range mountopt.Split(element) {
			if name, value, _ := strings.Cut(option, "="); !taken(name, value) {
				rest = append(rest, option)
			}
		}
	}
	h.args = slices.Clip(rest)
}

// files returns what the command shall inherit beside the standard files. The
// caller closes them.
func (h *handover) files() ([]*os.File, error) {
	if !h.piped {
		return nil, nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// mount.cifs takes what one read gives, so nothing is added to it. The
	// pipe holds it all, and the helper finds the end behind it.
	_, err = writer.WriteString(h.secret)
	if closeErr := writer.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		reader.Close()
		return nil, err
	}
	return []*os.File{reader}, nil
}
