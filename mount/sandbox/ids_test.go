package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// hasAllIDs reports whether every id is there.
func hasAllIDs(t *testing.T) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Equal(strings.Fields(string(content)), []string{"0", "0", "4294967295"})
}

// otherIDs are ids that the test may take: others than root's, where there are
// any.
func otherIDs(t *testing.T) *sandbox.Credential {
	t.Helper()
	if hasAllIDs(t) {
		return &sandbox.Credential{UID: 1234, GID: 2345, Groups: []uint32{77, 3456}}
	}
	return &sandbox.Credential{KeepGroups: true}
}

func TestIDsOfTheProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		want := otherIDs(t)
		c := program(t, "stat:"+binDir)
		c.Credential = want
		s, _ := run(t, c)
		if s.UID != int(want.UID) || s.GID != int(want.GID) {
			t.Errorf("the program is %d:%d, want %d:%d", s.UID, s.GID, want.UID, want.GID)
		}
		if !want.KeepGroups && !slices.Equal(s.Groups, []int{77, 3456}) {
			t.Errorf("its groups are %v", s.Groups)
		}
		if want.UID != 0 && s.Status["CapPrm"] != "0000000000000000" {
			t.Errorf("it kept the capabilities %s", s.Status["CapPrm"])
		}
		if !hasAllIDs(t) {
			c.Credential = &sandbox.Credential{UID: 1234, KeepGroups: true}
			if e := fails(t, c); !errors.Is(e, unix.EINVAL) {
				t.Errorf("an id that is not mapped: %v", e)
			}
		}
	})
}

func TestAWorkingDirectoryThatTheProgramsUserMayNotSearch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ids := otherIDs(t)
		root := mkdir(t, t.TempDir()+"/root")
		mkdir(t, root+"/closed/in")
		if err := os.Chmod(root+"/closed", 0o700); err != nil {
			t.Fatal(err)
		}
		c := inRoot(t, program(t), root)
		c.Credential, c.Dir = ids, "/closed/in"
		if s, _ := run(t, c); ids.UID != 0 && s.UID != int(ids.UID) {
			t.Errorf("the program is user %d", s.UID)
		}
		c.Dir = "/missing"
		if e := fails(t, c); !errors.Is(e, unix.ENOENT) || e.Path != c.Dir || !strings.Contains(e.Advice, "workingDir") {
			t.Error(e)
		}
		if !hasAllIDs(t) {
			return
		}
		many := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
		c.UserNamespace = &sandbox.UserNamespace{UIDMappings: many, GIDMappings: many}
		c.Dir = "/closed/in" // to an owner whom the namespace does not have
		if e := fails(t, c); !errors.Is(e, sandbox.ErrNotPermitted) || e.Path != c.Dir {
			t.Error(e)
		}
	})
}

func TestCapabilitiesAndNoNewPrivileges(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := program(t)
		c.Capabilities, c.NoNewPrivileges = []string{"CAP_CHOWN", "net_bind_service"}, true
		c.Credential = otherIDs(t)
		s, _ := run(t, c)
		const chownAndBind = "0000000000000401"
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			if s.Status[set] != chownAndBind {
				t.Errorf("%s is %s, want %s", set, s.Status[set], chownAndBind)
			}
		}
		if s.Status["NoNewPrivs"] != "1" {
			t.Error("no_new_privs is not set")
		}
		c.Capabilities, c.NoNewPrivileges = []string{}, false
		if s, _ = run(t, c); s.Status["CapPrm"] != "0000000000000000" || s.Status["CapBnd"] != "0000000000000000" || s.Status["NoNewPrivs"] != "0" {
			t.Errorf("without any capability: %v", s.Status)
		}
		c.Capabilities = []string{"CAP_PODVOL"}
		if e := fails(t, c); !errors.Is(e, sandbox.ErrConfig) {
			t.Error(e)
		}
	})
}

func TestAUserNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir() + "/source"
		write(t, source+"/file", "content")
		for _, withRoot := range []bool{false, true} {
			c := program(t, "read:/podvol/file", "write:/podvol/new", "stat:/podvol/new", "read:/podvol-deep/a/file", "stat:/podvol-deep")
			if withRoot {
				c = inRoot(t, c, mkdir(t, t.TempDir()+"/root"))
			}
			c.Mounts = append(c.Mounts, sandbox.Mount{Source: source, Destination: "/podvol"}, sandbox.Mount{Source: source, Destination: "/podvol-deep/a"})
			c.UserNamespace = sameIDs(t)
			s, _ := run(t, c)
			if want := []string{"content", "written", "100644 0:0", "content", "40755 0:0"}; !slices.Equal(s.Results, want) {
				t.Errorf("results %q, want %q", s.Results, want)
			}
			if s.Status["CapAmb"] != "0000000000000000" || s.Status["CapEff"] == "0000000000000000" {
				t.Errorf("its capabilities are %v", s.Status)
			}
		}
	})
}

func TestAUserNamespaceOfManyIDs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ids := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 1000}}
		c := program(t, "stat:/podvol")
		source := t.TempDir() + "/source"
		mkdir(t, source)
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: source, Destination: "/podvol"})
		c.UserNamespace = &sandbox.UserNamespace{UIDMappings: ids, GIDMappings: ids}
		c.Credential = &sandbox.Credential{UID: 12, GID: 34, Groups: []uint32{56}}
		if !hasAllIDs(t) {
			if e := fails(t, c); !errors.Is(e, sandbox.ErrNoIDs) || e.Advice == "" {
				t.Error(e)
			}
			return
		}
		if err := os.Chown(source, 100012, 100034); err != nil {
			t.Fatal(err)
		}
		s, _ := run(t, c)
		if s.UID != 12 || s.GID != 34 || !slices.Equal(s.Groups, []int{34, 56}) && !slices.Equal(s.Groups, []int{56}) || s.Status["CapPrm"] != "0000000000000000" {
			t.Errorf("the program is %d:%d %v with %s", s.UID, s.GID, s.Groups, s.Status["CapPrm"])
		}
		if want := []string{"40755 12:34"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
	})
}

func TestIDsThatAreNotMapped(t *testing.T) {
	c := sandbox.Config{Args: []string{"true"}, UserNamespace: sameIDs(t), Credential: &sandbox.Credential{UID: 5}}
	if e := fails(t, c); !errors.Is(e, sandbox.ErrNoIDs) {
		t.Error(e)
	}
	c.Credential = &sandbox.Credential{Groups: []uint32{6}}
	if e := fails(t, c); !errors.Is(e, sandbox.ErrNoIDs) {
		t.Error(e)
	}
	c = sandbox.Config{Args: []string{"true"}, UserNamespace: &sandbox.UserNamespace{}}
	if e := fails(t, c); !errors.Is(e, sandbox.ErrConfig) {
		t.Error(e)
	}
}

// An ordinary user, in no namespace of anybody's making.
func TestAnOrdinaryUser(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "sandbox-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self := copyOfSelf(t, dir)
	home := mkdir(t, dir+"/home")
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestAsTheOrdinaryUser$", "-test.v=true", "-test.count=1")
	cmd.Env = append(os.Environ(), "TMPDIR="+home, ordinaryVar+"=1")
	if os.Geteuid() == 0 {
		if err := os.Chown(home, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// deniesUserNamespaces reports whether AppArmor keeps ordinary users from mounting in
// theirs.
func deniesUserNamespaces() bool {
	restricted, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	return err == nil && strings.TrimSpace(string(restricted)) == "1"
}

// ordinaryVar lets TestAsTheOrdinaryUser do something.
const ordinaryVar = "SANDBOX_ORDINARY"

func TestAsTheOrdinaryUser(t *testing.T) {
	if os.Getenv(ordinaryVar) == "" {
		return // TestAnOrdinaryUser runs it
	}
	dir := t.TempDir()
	write(t, dir+"/source/file", "content")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	for name, inside := range map[string][2]uint32{"root": {0, 0}, "another": {1000, 2000}} {
		c := program(t, "read:/podvol/a/file", "write:/podvol/a/"+name, "write:/dev/null", "stat:/podvol/a/file")
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: dir + "/source", Destination: "/podvol/a"})
		c.UserNamespace = &sandbox.UserNamespace{
			UIDMappings: []host.IDMapping{{ContainerID: inside[0], HostID: uid, Size: 1}},
			GIDMappings: []host.IDMapping{{ContainerID: inside[1], HostID: gid, Size: 1}},
		}
		if deniesUserNamespaces() {
			if e := fails(t, c); e.Advice == "" {
				t.Errorf("where user namespaces are restricted: %v", e)
			}
			continue
		}
		s, _ := run(t, c)
		if s.UID != int(inside[0]) || s.GID != int(inside[1]) || len(s.Results) != 4 || !slices.Equal(s.Results[:3], []string{"content", "written", "written"}) {
			t.Errorf("%s: %d:%d, results %q", name, s.UID, s.GID, s.Results)
		}
		if isRoot := s.UID == 0; isRoot != (s.Status["CapEff"] != "0000000000000000") {
			t.Errorf("%s has the capabilities %s", name, s.Status["CapEff"])
		}
		if _, err := os.Stat(dir + "/source/" + name); err != nil {
			t.Error(err)
		}
	}
	c := program(t)
	if e := fails(t, c); !errors.Is(e, sandbox.ErrNoNamespace) || e.Advice == "" {
		t.Errorf("without a user namespace: %v", e)
	}
	c.UserNamespace = &sandbox.UserNamespace{
		UIDMappings: []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GIDMappings: []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}},
	}
	t.Setenv("PATH", "/nowhere")
	if e := fails(t, c); !errors.Is(e, sandbox.ErrNoIDs) || !errors.Is(e, exec.ErrNotFound) {
		t.Errorf("without newuidmap: %v", e)
	}
}
