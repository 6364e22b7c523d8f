package host

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/fstypes"
)

// privileges are what decides about mounts beside the file system itself.
type privileges struct {
	// effective is the set of effective capabilities, a bit each.
	effective uint64
	// inUserNamespace: the capabilities count in a user namespace only.
	inUserNamespace bool
}

// ownPrivileges reads this process's. It reads the main thread's: other threads
// may have dropped some.
func ownPrivileges() (privileges, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return privileges{}, err
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return privileges{}, err
	}
	return parsePrivileges(string(status), string(ids))
}

// parsePrivileges reads /proc/<pid>/status and /proc/<pid>/uid_map. Only the
// initial user namespace has all ids as they are.
func parsePrivileges(status, ids string) (privileges, error) {
	p := privileges{inUserNamespace: strings.Join(strings.Fields(ids), " ") != "0 0 4294967295"}
	lines := bufio.NewScanner(strings.NewReader(status))
	for lines.Scan() {
		if hex, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			var err error
			p.effective, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return p, err
		}
	}
	return privileges{}, errors.New("no CapEff line")
}

func (p privileges) has(capability int) bool { return p.effective&(1<<capability) != 0 }

// explainDenial says which privilege is missing, or what stood in the way.
func (p privileges) explainDenial(e *mount.Error) {
	if e.Command == "" && !errors.Is(e.Err, unix.EPERM) && !errors.Is(e.Err, unix.EACCES) {
		return // it was worked out from something else
	}
	onTheWay, _ := errors.AsType[*os.PathError](e.Err)
	switch {
	case len(e.Also) > 0 || e.Kernel != "":
		return // it is known already
	case onTheWay != nil && errors.Is(onTheWay, unix.EACCES):
		if !p.has(unix.CAP_DAC_READ_SEARCH) && !p.has(unix.CAP_DAC_OVERRIDE) {
			e.Capability = "CAP_DAC_READ_SEARCH"
		}
	case !p.has(unix.CAP_SYS_ADMIN):
		e.Capability = "CAP_SYS_ADMIN"
	case p.inUserNamespace:
		e.Also = append(e.Also, mount.ErrUserNamespace)
	case e.Command == "" && !fstypes.IsShare(e.FSType): // a helper or a server may have reasons of its own
		e.Also = append(e.Also, mount.ErrSecurityPolicy)
	}
}
