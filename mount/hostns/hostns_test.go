package hostns_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/hostns"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// agents are what agents do.
func agents() map[string]func(context.Context, *agent) error {
	return map[string]func(context.Context, *agent) error{
		"mounts": mounts, "refusals": refusals, "unmounts": unmounts, "swapped": swapped, "check": check,
		"fuse": fuse, "hang": hang, "lost child": lostChild, "volumes": volumes,
	}
}

func onHost(t *testing.T, f func(t *testing.T, n node)) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) { f(t, newNode(t)) })
}

// want makes an error of what is not as it should be.
func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// What an agent in a container mounts is on the host, and comes to the container from there.
func TestMounts(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		testtool.WriteFile(t, "host's", testtool.MkdirAll(t, n.root, "data", "sub"), "file")
		n.run(t, "mounts")
		for name, fstype := range map[string]string{"tmpfs": "tmpfs", "bind": "tmpfs", "part": "tmpfs", "overlay": "overlay"} {
			e, mounted := mounttest.EntryAt(t, filepath.Join(n.root, name))
			if !mounted || e.FSType != fstype {
				t.Errorf("%s on the host: mounted %v, %+v", name, mounted, e)
			}
		}
		if text, err := os.ReadFile(filepath.Join(n.root, "tmpfs", "secret")); err != nil || string(text) != "from the agent" {
			t.Errorf("%q, %v", text, err)
		}
		if e, _ := mounttest.EntryAt(t, filepath.Join(n.root, "bind")); !e.ReadOnly() {
			t.Errorf("the bind was not mounted again read-only: %+v", e)
		}
	})
}

func mounts(ctx context.Context, a *agent) error {
	m := a.mounter
	tmpfs := a.dir("tmpfs")
	changes := table.Of(m).Subscribe(ctx)
	<-changes // from now on
	if err := m.MountContext(ctx, mounttest.Tmpfs(tmpfs, "size=64k")); err != nil {
		return err
	}
	<-changes
	if err := os.WriteFile(filepath.Join(tmpfs, "secret"), []byte("from the agent"), 0o600); err != nil {
		return err
	}
	data, bind, part := a.dir("data"), a.dir("bind"), a.dir("part")
	if err := m.Mount(data, bind, "", []string{"bind"}); err != nil {
		return err
	}
	if err := m.Mount("", bind, "", []string{"bind", "remount", "ro"}); err != nil {
		return err
	}
	// A part of a volume, by descriptor, as containers' sub-paths are mounted.
	sub, err := os.Open(filepath.Join(data, "sub"))
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := mount.Mount(ctx, m, mount.Request{Source: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), sub.Fd()), Target: part, Options: []string{"bind"}}); err != nil {
		return err
	}
	overlay := a.dir("overlay")
	options := []string{"lowerdir=" + a.dir("lower"), "upperdir=" + a.dir("upper"), "workdir=" + a.dir("work")}
	if err := m.Mount("overlay", overlay, "overlay", options); err != nil {
		return err
	}
	return errors.Join(asked(m, tmpfs, data, part), m.Close())
}

// asked asks all that a mounter and its table can be asked.
func asked(m *hostns.Mounter, tmpfs, data, part string) error {
	text, err := os.ReadFile(filepath.Join(part, "file"))
	errs := []error{want(string(text) == "host's", "the part has %q: %v", text, err)}
	e, mounted, err := m.Table().At(tmpfs)
	errs = append(errs, want(mounted && e.FSType == "tmpfs" && err == nil, "the table has %+v, %v, %v", e, mounted, err))
	point, err := m.IsMountPoint(tmpfs)
	errs = append(errs, want(point && err == nil, "a mount point: %v, %v", point, err))
	not, err := m.IsLikelyNotMountPoint(data)
	errs = append(errs, want(not && err == nil, "no mount point: %v, %v", not, err))
	refs, err := m.GetMountRefs(filepath.Join(data, "sub"))
	errs = append(errs, want(len(refs) == 1 && refs[0] == part, "references %v, %v", refs, err))
	points, err := m.List()
	all, err2 := m.Table().All()
	errs = append(errs, want(len(points) == len(all) && len(all) > 3, "%d points, %d entries: %v, %v", len(points), len(all), err, err2))
	below, err := mount.Below(m.Table(), filepath.Dir(part))
	errs = append(errs, want(len(below) == 4, "below: %v, %v", below, err))
	same, err := m.Table().ByDevice(e.Device)
	bySource, err2 := m.Table().BySource(e.Source)
	errs = append(errs, want(len(same) == 1 && len(bySource) >= 1, "by device %v, %v; by source %v, %v", same, err, bySource, err2))
	holds, err := table.Containing(m.Table(), filepath.Join(tmpfs, "secret"))
	errs = append(errs, want(holds.ID == e.ID, "containing: %+v, %v", holds, err))
	f, err := os.Open(tmpfs)
	if err != nil {
		return err
	}
	defer f.Close()
	held, err := table.Holding(m.Table(), f)
	errs = append(errs, want(held.ID == e.ID, "holding: %+v, %v", held, err))
	return errors.Join(errs...)
}

// Errors are those of the host's mounter: causes, errnos and certainty come across.
func TestRefusals(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		testtool.MkdirAll(t, n.root, "victim")
		testtool.Must(t, os.Symlink("victim", filepath.Join(n.root, "link")))
		n.run(t, "refusals")
		if e, mounted := mounttest.EntryAt(t, filepath.Join(n.root, "victim")); mounted {
			t.Errorf("a link led the mount to %+v", e)
		}
	})
}

func refusals(ctx context.Context, a *agent) error {
	dir := a.dir("dir")
	var errs []error
	for name, tc := range map[string]struct {
		request mount.Request
		want    error
	}{
		"a link as target": {mounttest.Tmpfs(a.root + "/link"), mount.ErrTargetIsLink},
		"no target":        {mounttest.Tmpfs(a.root + "/missing"), mount.ErrNoTarget},
		"an option":        {mounttest.Tmpfs(dir, "colour=red"), mount.ErrBadOption},
		"a secret option":  {mount.Request{Source: "x", Target: dir, FSType: "tmpfs", Sensitive: []string{"password=hunter2"}}, mount.ErrBadOption},
		"no source":        {mount.Request{Source: a.root + "/missing", Target: dir, Options: []string{"bind"}}, mount.ErrNoSource},
		"a closed file":    {mount.Request{Source: "/proc/self/fd/999", Target: dir, Options: []string{"bind"}}, mount.ErrNoSource},
	} {
		err := a.mounter.MountContext(ctx, tc.request)
		own, ok := errors.AsType[*mount.Error](err)
		errs = append(errs, want(ok && errors.Is(err, tc.want) && !own.Uncertain && own.Target == tc.request.Target, "%s: %v", name, err))
		errs = append(errs, want(!strings.Contains(fmt.Sprint(err), "hunter2"), "%s: the secret is shown", name))
	}
	err := a.mounter.Unmount(dir)
	errs = append(errs, want(errors.Is(err, mount.ErrNotMounted) && errors.Is(err, unix.EINVAL), "unmount of nothing: %v", err))
	_, err = a.mounter.IsMountPoint(a.root + "/missing")
	errs = append(errs, want(errors.Is(err, fs.ErrNotExist), "a question for nothing: %v", err))
	ended, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("enough"))
	err = a.mounter.MountContext(ended, mounttest.Tmpfs(dir))
	own, _ := errors.AsType[*mount.Error](err)
	errs = append(errs, want(own != nil && !own.Uncertain && strings.Contains(err.Error(), "enough"), "a context that has ended: %v", err))
	errs = append(errs, a.mounter.Close(), a.mounter.Close())
	err = a.mounter.MountContext(ctx, mounttest.Tmpfs(dir))
	errs = append(errs, want(errors.Is(err, hostns.ErrChildEnded), "after Close: %v", err))
	return errors.Join(errs...)
}

// An unmount climbs the ladder on the host, and what the container sees goes too.
func TestUnmounts(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		n.run(t, "unmounts")
		if left := below(t, n.root); len(left) > 0 {
			t.Errorf("left on the host: %v", left)
		}
	})
}

func below(t *testing.T, dir string) []mount.Entry {
	t.Helper()
	left, err := mount.Below(table.Kernel(), dir)
	testtool.Must(t, err)
	return left
}

func unmounts(ctx context.Context, a *agent) error {
	dir := a.dir("dir")
	if err := a.mounter.MountContext(ctx, mounttest.Tmpfs(dir)); err != nil {
		return err
	}
	held, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer held.Close()
	rung, err := a.mounter.UnmountContext(ctx, dir, mount.UnmountOptions{Holders: true})
	errs := []error{want(errors.Is(err, mount.ErrBusy) && rung == mount.RungNormal, "a busy mount: %v, %v", rung, err)}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = a.mounter.UnmountContext(short, dir, mount.UnmountOptions{ForceAfter: time.Hour, LazyAfter: 2 * time.Hour})
	errs = append(errs, want(errors.Is(err, context.DeadlineExceeded) && errors.Is(err, mount.ErrTimedOut) || errors.Is(err, mount.ErrBusy), "in vain: %v", err))
	rung, err = a.mounter.UnmountContext(ctx, dir, mount.UnmountOptions{ForceAfter: 1, LazyAfter: 2})
	errs = append(errs, want(err == nil && rung == mount.RungLazy, "lazily: %v, %v", rung, err))
	_, mounted, err := table.Kernel().At(dir)
	errs = append(errs, want(!mounted && err == nil, "the container sees it still: %v", err))
	return errors.Join(errs...)
}

// A descriptor is of one inode: another directory that has taken its name on the host since is
// not mounted in its stead.
func TestSwappedSource(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		n.run(t, "swapped")
		if left := below(t, n.root); len(left) > 0 {
			t.Errorf("mounted: %v", left)
		}
	})
}

func swapped(ctx context.Context, a *agent) error {
	source, target := a.dir("volume", "sub"), a.dir("target")
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	request := mount.Request{Source: fmt.Sprintf("/proc/self/fd/%d", file.Fd()), Target: target, Options: []string{"bind"}}
	var errs []error
	for name, swap := range map[string]func() error{
		"a link":            func() error { return os.Symlink("/etc", source) },
		"another directory": func() error { return os.Mkdir(source, 0o755) },
		"nothing":           func() error { return nil },
	} {
		if err := errors.Join(os.RemoveAll(source), swap()); err != nil {
			return err
		}
		err := a.mounter.MountContext(ctx, request)
		own, ok := errors.AsType[*mount.Error](err)
		errs = append(errs, want(ok && own.Cause == mount.ErrNoSource && !own.Uncertain, "%s at its path: %v", name, err))
	}
	return errors.Join(errs...)
}

// The volume must follow the host's mounts, at the same path.
func TestCheckPropagation(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		for _, tc := range []struct {
			mode    mount.Propagation
			private bool
			want    string
		}{
			{mode: mount.PropagationSlave, want: "null"},
			{mode: mount.PropagationShared, want: "null"},
			{mode: mount.PropagationPrivate, want: "mountPropagation: HostToContainer"},
			{mode: mount.PropagationPrivate, private: true, want: "mount --make-rshared"},
		} {
			if tc.private {
				mounttest.Mount(t, mount.Request{Target: filepath.Dir(n.root), Options: []string{"rprivate"}})
			}
			code, out, errOut := containertest.Run(t, n.container(t, "check", tc.mode))
			if code != 0 || !strings.Contains(out, tc.want) {
				t.Errorf("%s: %d, %q, %s", tc.mode, code, out, errOut)
			}
		}
	})
}

func check(_ context.Context, a *agent) error {
	w, err := a.mounter.CheckPropagation(a.root)
	if w == nil {
		fmt.Println("null")
		return err
	}
	fmt.Println(w, w.Advice())
	return err
}

// hierarchy makes a cgroup in a hierarchy of the host that takes processes.
func hierarchy(t *testing.T, name string) string {
	t.Helper()
	all, err := table.Kernel().All()
	testtool.Must(t, err)
	for _, e := range all {
		if e.FSType != "cgroup" && e.FSType != "cgroup2" || e.Root != "/" {
			continue
		}
		dir := filepath.Join(e.Target, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) })
		if os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0) != nil {
			continue // such as a cpuset without processors
		}
		testtool.Must(t, os.WriteFile(filepath.Join(e.Target, "cgroup.procs"), []byte("0"), 0)) // back
		return dir
	}
	t.Skip("no hierarchy of cgroups takes a new cgroup here")
	return ""
}

func pids(t *testing.T, cgroup string) (found []int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	testtool.Must(t, err)
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		testtool.Must(t, err)
		found = append(found, pid)
	}
	return found
}

// A runtime ends a container by killing its cgroup. The FUSE daemon of a volume is not in it, and
// serves on; the next agent unmounts it.
func TestFUSEDaemonOutlivesTheAgent(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		silentfuse.Need(t)
		n := newNode(t)
		unique := filepath.Base(filepath.Dir(t.TempDir()))
		own := "podvol-mounts-" + unique
		cgroup := hierarchy(t, "podvol-agent-"+unique)
		all := filepath.Join(filepath.Dir(cgroup), own)
		t.Cleanup(func() { removeCgroups(t, own) })
		agent := n.start(t, n.container(t, "fuse", mount.PropagationSlave, "MOUNT_COMMAND="+fuseCommand(t, n), "CGROUP="+own))
		testtool.Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(agent.line(t)), 0))
		agent.goOn(t)
		if said := agent.line(t); said != "mounted" {
			t.Fatalf("the agent says %q", said)
		}
		child, _ := strconv.Atoi(agent.line(t))
		target := filepath.Join(n.root, "fuse")
		if e, mounted := mounttest.EntryAt(t, target); !mounted || e.FSType != "fuse.silent" {
			t.Fatalf("on the host: %v, %+v", mounted, e)
		}
		for _, pid := range pids(t, cgroup) {
			testtool.Must(t, unix.Kill(pid, unix.SIGKILL))
		}
		agent.Wait()
		awaitEnd(t, child)
		if left := pids(t, all); len(left) != 1 {
			t.Errorf("the host's cgroup has the processes %v, and not the daemon alone", left)
		}
		if _, err := os.Stat(target); err != nil {
			t.Errorf("the daemon does not serve any more: %v", err)
		}
		if err := mounttest.Unmount(t, target); err != nil {
			t.Error(err)
		}
		for _, pid := range pids(t, all) {
			awaitEnd(t, pid)
		}
	})
}

// removeCgroups removes the cgroups of a name in all hierarchies.
func removeCgroups(t *testing.T, name string) {
	all, err := table.Kernel().All()
	testtool.Must(t, err)
	for _, e := range all {
		if strings.HasPrefix(e.FSType, "cgroup") {
			os.Remove(filepath.Join(e.Target, name))
		}
	}
}

func fuse(ctx context.Context, a *agent) error {
	if err := a.pause(strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	if err := a.mounter.MountContext(ctx, mount.Request{Source: "silent", Target: a.dir("fuse"), FSType: "fuse.silent"}); err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	fmt.Println("mounted")
	return a.pause(strconv.Itoa(a.mounter.ChildPID()))
}

// When the agent is killed, the mount helper that it has started is, too, and the process on the
// host ends.
func TestAgentIsKilled(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		fifo := filepath.Join(filepath.Dir(n.root), "fifo")
		testtool.Must(t, unix.Mkfifo(fifo, 0o600))
		command := script(t, n, "echo $$ >"+fifo+"\nexec sleep 1000\n")
		agent := n.start(t, n.container(t, "hang", mount.PropagationSlave, "MOUNT_COMMAND="+command, "CGROUP=-"))
		child, err := strconv.Atoi(agent.line(t))
		testtool.Must(t, err)
		helper := numberFrom(t, fifo)
		agent.end()
		agent.Wait()
		awaitEnd(t, child)
		awaitEnd(t, helper)
	})
}

func numberFrom(t *testing.T, fifo string) int {
	t.Helper()
	text, err := os.ReadFile(fifo)
	testtool.Must(t, err)
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	testtool.Must(t, err)
	return number
}

func hang(ctx context.Context, a *agent) error {
	if _, err := a.mounter.Table().All(); err != nil { // which starts the child
		return err
	}
	fmt.Println(a.mounter.ChildPID())
	return a.mounter.MountContext(ctx, mount.Request{Source: "src", Target: a.dir("dir"), FSType: "fuse.silent"})
}

// A call whose process dies is uncertain; the next one has another, and who follows the
// table follows on.
func TestLostChild(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		fifo := filepath.Join(filepath.Dir(n.root), "fifo")
		testtool.Must(t, unix.Mkfifo(fifo, 0o600))
		command := script(t, n, "echo $$ >"+fifo+"\nexec sleep 1000\n")
		agent := n.start(t, n.container(t, "lost child", mount.PropagationSlave, "MOUNT_COMMAND="+command, "CGROUP=-"))
		child, err := strconv.Atoi(agent.line(t))
		testtool.Must(t, err)
		helper := numberFrom(t, fifo)
		testtool.Must(t, unix.Kill(child, unix.SIGKILL))
		if said := agent.line(t); said != "done" {
			t.Errorf("the agent says %q", said)
		}
		testtool.Must(t, unix.Kill(helper, unix.SIGKILL))
		awaitEnd(t, helper)
		if code, err := agent.Wait(); code != 0 || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	})
}

func lostChild(ctx context.Context, a *agent) error {
	changes := a.mounter.Table().Subscribe(ctx)
	<-changes // from now on
	fmt.Println(a.mounter.ChildPID())
	err := a.mounter.MountContext(ctx, mount.Request{Source: "src", Target: a.dir("dir"), FSType: "fuse.silent"})
	own, ok := errors.AsType[*mount.Error](err)
	errs := []error{want(ok && own.Uncertain && errors.Is(err, hostns.ErrChildEnded), "the child died: %v", err)}
	<-changes // its death
	other := a.dir("other")
	errs = append(errs, a.mounter.MountContext(ctx, mounttest.Tmpfs(other)))
	<-changes
	_, err = a.mounter.UnmountContext(ctx, other, mount.UnmountOptions{})
	fmt.Println("done")
	return errors.Join(append(errs, err)...)
}
