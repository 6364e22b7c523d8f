package flexvolume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// withDaemon is a driver whose first call starts a daemon for the node, as mount.nfs starts
// rpc.statd. The mount of the option "fails" fails once, after that.
const withDaemon = `#!/bin/sh
d=${0%/*}
case "$1" in
init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount)
	test -e "$d/pid" || { setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $! >"$d/pid"; }
	case "$3" in
	*fails*) test -e "$d/failed" || { : >"$d/failed"; echo '{"status":"Failure","message":"server is busy"}'; exit 1; } ;;
	esac
	mount -t tmpfs tmpfs "$2" >/dev/null && echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' ;;
esac
`

// A daemon that a failed call has started lives on when the call is repeated: the pods of other
// volumes use it.
func TestDaemonsOutliveTheirCall(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.Run(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "drivers")
		installProgram(t, dir, "shared", withDaemon)
		b := newBench(t, dir)
		failing := pv("a", "shared", map[string]string{"fails": "once"})
		if _, err := b.setUp(failing, "a"); err == nil {
			t.Fatal("the first mount does not fail")
		}
		text, err := os.ReadFile(filepath.Join(dir, "shared", "pid"))
		testtool.Must(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		testtool.Must(t, err)
		daemon, err := unix.PidfdOpen(pid, 0)
		testtool.Must(t, err)
		t.Cleanup(func() {
			_ = unix.PidfdSendSignal(daemon, unix.SIGKILL, nil, 0)
			_ = unix.Close(daemon)
		})
		b.mustSetUp(failing, "a")
		// One that has ended is a zombie until it is reaped.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, after, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(after, "Z") {
			t.Errorf("the daemon is dead after the second mount: %q, %v", stat, err)
		}
		b.tearDown(failing, "a")
	})
}
