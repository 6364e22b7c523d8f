package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/nfs"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// sayingKernel is a kernel with an NFS client whose servers say no.
type sayingKernel struct {
	mountapi.Calls
	fsopen, option, create error
	log                    []string
	told                   []string
}

func (k *sayingKernel) Fsopen(string) (int, error) {
	if k.fsopen != nil {
		return -1, k.fsopen
	}
	return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func (k *sayingKernel) SetFlag(_ int, key string) error { return k.SetString(0, key, "") }

func (k *sayingKernel) SetString(_ int, key, value string) error {
	k.told = append(k.told, key+"="+value)
	if key == "rsize" {
		return k.option
	}
	return nil
}

func (k *sayingKernel) Create(int) error { return k.create }
func (k *sayingKernel) Log(int) []string { return k.log }

// noHosts is a resolver that knows no name, after a while.
type noHosts struct{ after time.Duration }

func (r noHosts) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	select {
	case <-time.After(r.after):
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// announced is a context that ends later than it says: what is done by the time
// that it says does not depend on how busy the machine is.
type announced struct {
	context.Context
	end time.Time
}

func (a announced) Deadline() (time.Time, bool) { return a.end, true }

func mountNFSOn(t *testing.T, k *sayingKernel, limit time.Duration, source string, options ...string) *mount.Error {
	t.Helper()
	k.Calls = mountapi.Kernel{}
	m := New(Config{Resolver: noHosts{}, Via: ViaSystemCalls})
	m.api = k
	late, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	err := m.MountContext(announced{late, time.Now().Add(limit)}, mount.Request{Source: source, Target: t.TempDir(), FSType: "nfs", Options: options})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		t.Fatalf("%v is no *Error", err)
	}
	if e.Uncertain {
		t.Errorf("nothing can appear any more: %v", err)
	}
	return e
}

// Over RDMA nothing is asked before the mount: what the kernel says decides.
func TestWhatTheKernelSaysOfNFS(t *testing.T) {
	tests := map[string]struct {
		kernel  sayingKernel
		options []string
		cause   mount.Cause
		words   string
	}{
		"no NFS":              {sayingKernel{fsopen: unix.ENODEV}, nil, mount.ErrNoFilesystem, "modprobe nfs"},
		"denied":              {sayingKernel{create: unix.EACCES}, nil, mount.ErrAccessDenied, "NFSv4.2"},
		"not permitted":       {sayingKernel{create: unix.EPERM}, []string{"vers=4"}, mount.ErrAccessDenied, ""},
		"no path":             {sayingKernel{create: unix.ENOENT}, []string{"vers=4"}, mount.ErrNoSuchExport, "exported to this node"},
		"a file on the path":  {sayingKernel{create: unix.ENOTDIR}, nil, mount.ErrNoSuchExport, ""},
		"stale":               {sayingKernel{create: unix.ESTALE}, nil, mount.ErrStaleHandle, ""},
		"refused":             {sayingKernel{create: unix.ECONNREFUSED}, []string{"vers=4"}, mount.ErrConnectionRefused, ""},
		"timed out":           {sayingKernel{create: unix.ETIMEDOUT}, nil, mount.ErrTimedOut, ""},
		"no route":            {sayingKernel{create: unix.EHOSTUNREACH}, nil, mount.ErrTimedOut, ""},
		"not this version":    {sayingKernel{create: unix.EPROTONOSUPPORT}, []string{"vers=4.1"}, mount.ErrVersionUnsupported, "version 4.1 was asked for"},
		"none of 4":           {sayingKernel{create: unix.EPROTONOSUPPORT}, []string{"vers=4"}, mount.ErrVersionUnsupported, "NFSv4.1: open"},
		"a refused value":     {sayingKernel{option: unix.EINVAL, log: []string{"e NFS: Bad value for 'rsize'"}}, []string{"rsize=x"}, mount.ErrBadOption, "Bad value for 'rsize'"},
		"options that clash":  {sayingKernel{create: unix.EINVAL, log: []string{"e NFS: 'Migration' not supported for this NFS version"}}, []string{"vers=4.2", "migration"}, mount.ErrBadOption, "Migration"},
		"a version not built": {sayingKernel{create: unix.EPROTONOSUPPORT, log: []string{"e NFS: Version unavailable"}}, []string{"vers=4.2"}, mount.ErrNoFilesystem, "Version unavailable"},
	}
	nstest.Run(t, func(t *testing.T) {
		for name, test := range tests {
			e := mountNFSOn(t, &test.kernel, 10*time.Second, "10.0.0.1:/e", append(test.options, "proto=rdma")...)
			if e.Cause != test.cause || !strings.Contains(e.Error(), test.words) {
				t.Errorf("%s: %v; want %v and %q", name, e, test.cause, test.words)
			}
		}
	})
}

func TestNFSIsNotMountedBlindly(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	tests := map[string]struct {
		source string
		option string
		cause  mount.Cause
		words  string
	}{
		"a name nobody knows":   {"nowhere.test:/e", "fg", mount.ErrNameResolution, "resolve nowhere.test"},
		"a server that is mute": {"127.0.0.1:/e", "port=" + port, mount.ErrTimedOut, "NFS at 127.0.0.1:" + port},
		"nothing there":         {"127.0.0.1:/e", "vers=4,port=1", mount.ErrConnectionRefused, "NFS at 127.0.0.1:1"},
		"a bad option":          {"127.0.0.1:/e", "port=x", mount.ErrBadOption, "port"},
		"a bad source":          {"fd00::1:/e", "fg", mount.ErrBadOption, "brackets"},
		"a version never made":  {"127.0.0.1:/e", "vers=5", mount.ErrVersionUnsupported, "NFSv5"},
		"Kerberos":              {"127.0.0.1:/e", "sec=krb5", mount.ErrNeedsCommand, "Kerberos"},
		"TLS":                   {"127.0.0.1:/e", "xprtsec=mtls", mount.ErrNeedsCommand, "tlshd"},
	}
	for name, test := range tests {
		k := &sayingKernel{}
		e := mountNFSOn(t, k, 3*time.Second, test.source, test.option)
		if e.Cause != test.cause || !strings.Contains(e.Error(), test.words) {
			t.Errorf("%s: %v; want %v and %q", name, e, test.cause, test.words)
		}
		if len(k.told) != 0 {
			t.Errorf("%s: the kernel was told %q", name, k.told)
		}
		if test.words == "port" && e.Option != "port" {
			t.Errorf("%s: option %q", name, e.Option)
		}
	}
}

// Linux says EINVAL and nothing more of an NFSv3 export for Kerberos only.
func TestThreeMayWantAnotherFlavour(t *testing.T) {
	tests := map[string]struct {
		version nfs.Version
		lines   []string
		also    []mount.Cause
	}{
		"3":           {nfs.Version{Major: 3}, nil, []mount.Cause{mount.ErrAccessDenied}},
		"3, with why": {nfs.Version{Major: 3}, []string{"e NFS: bad mount option"}, nil},
		"4.2":         {nfs.Version{Major: 4, Minor: 2}, nil, nil},
	}
	for name, test := range tests {
		err := explainNFS(&nfs.Failure{Version: test.version, Err: &failure.Kernel{Call: callCreate, Lines: test.lines, Err: unix.EINVAL}})
		if failed, ok := errors.AsType[*nfsError](err); !ok || !slices.Equal(failed.also, test.also) {
			t.Errorf("%s: %+v, want also %v", name, failed, test.also)
		}
	}
}
