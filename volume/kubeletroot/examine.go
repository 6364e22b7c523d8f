package kubeletroot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
)

// Kind is a kind of problem.
type Kind string

// The kinds.
const (
	// Orphan is a pod's directory with volumes in it, and no such pod.
	Orphan Kind = "pod directory without pod"
	// LeakedMount is a mount below it, or a device's mount that no pod's volume needs.
	LeakedMount Kind = "leaked mount"
	// NoVolumeData is a CSI volume, or its device's mount, whose vol_data.json is lost, empty
	// or not what it should be.
	NoVolumeData Kind = "CSI volume without its vol_data.json"
	// LeftVolumeData is a vol_data.json whose volume is gone.
	LeftVolumeData Kind = "vol_data.json without its CSI volume"
	// StaleServer is a mounted server that does not answer.
	StaleServer Kind = "stale server"
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind   Kind
	PodUID types.UID
	// Volume is the directory's name, or the server's.
	Volume string
	Path   string
	// Err says what was seen, and Advice what a person can do.
	Err    error
	Advice string
}

// Config says where to look. RootDir and Mounts are required.
type Config struct {
	RootDir string
	Mounts  mount.Table
	// Pods are the node's pods, by the UIDs that their directories have. Nil: they are not
	// known; then a pod is one that has a cgroup below CgroupDir, if any pod has one there.
	Pods map[types.UID]bool
	// CgroupDir is where cgroups are mounted; empty means /sys/fs/cgroup.
	CgroupDir string
	// MaxEntries is how many names are read in all; 0 means 100,000.
	MaxEntries int
	// Patience is how long servers may take to answer, all together; 0 means 3 seconds.
	Patience time.Duration
	// Ask asks a mounted file system whether it answers; nil means statfs(2). It may
	// block for ever.
	Ask func(path string) error
}

// Report is what [Examine] has found.
type Report struct {
	Findings []Finding
	// Pods are the pods' directories that were seen. KnownBy says which pods there are:
	// "list", "cgroups", or "" where that is not known, and no orphan was looked for.
	Pods    []types.UID
	KnownBy string
	// Truncated: there are more names than may be read.
	Truncated bool
}

// Examine reads the root directory. Its error joins what could not be read; the report has the
// rest. It is safe for concurrent use; ctx ends only the wait for servers.
func Examine(ctx context.Context, c Config) (*Report, error) {
	x := &examination{Config: c, tree: tree{left: cmp.Or(c.MaxEntries, 100_000)}, uses: make(map[string]bool), report: &Report{}}
	if err := x.readMounts(); err != nil {
		return x.report, err
	}
	known := c.Pods
	x.report.KnownBy = "list"
	if known == nil {
		if known, x.report.KnownBy = podsOfCgroups(cmp.Or(c.CgroupDir, "/sys/fs/cgroup")), "cgroups"; len(known) == 0 {
			known, x.report.KnownBy = nil, ""
		}
	}
	x.pods(known)
	x.csiDevices()
	x.staleServers(ctx)
	x.report.Truncated = x.tree.full
	slices.SortStableFunc(x.report.Findings, func(a, b Finding) int { return cmp.Compare(a.Path, b.Path) })
	return x.report, errors.Join(x.errs...)
}

type examination struct {
	Config
	tree   tree
	mounts []mount.Entry // below the root
	// uses are the devices' directories that pods' volumes need.
	uses map[string]bool
	// unclear: a volume's device is not known, so that none counts as leaked.
	unclear bool
	report  *Report
	errs    []error
}

// readMounts reads the mounts below the root, and below what links in it lead to.
func (x *examination) readMounts() error {
	seen := make(map[int]bool)
	for _, dir := range []string{x.RootDir, filepath.Join(x.RootDir, "pods"), filepath.Join(x.RootDir, "plugins")} {
		below, err := mount.Below(x.Mounts, x.real(dir))
		if err != nil {
			return err
		}
		for _, e := range below {
			if !seen[e.ID] {
				seen[e.ID] = true
				x.mounts = append(x.mounts, e)
			}
		}
	}
	return nil
}

// real is a path without links, as mount tables have it.
func (x *examination) real(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

func (x *examination) find(f Finding) { x.report.Findings = append(x.report.Findings, f) }

func (x *examination) failed(err error) {
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		x.errs = append(x.errs, err)
	}
}

// isMounted reports whether something is mounted at a path without links.
func (x *examination) isMounted(path string) bool {
	return slices.ContainsFunc(x.mounts, func(e mount.Entry) bool { return e.Target == path })
}

// top opens a directory right below the root, which may be a link.
func (x *examination) top(name string) *os.File {
	dir, err := openRoot(x.real(filepath.Join(x.RootDir, name)))
	x.failed(err)
	if err != nil {
		return nil
	}
	return dir
}

// pods looks at all pods' directories.
func (x *examination) pods(known map[types.UID]bool) {
	dir := x.top("pods")
	if dir == nil {
		return
	}
	defer dir.Close()
	found, err := x.tree.entries(dir)
	x.failed(err)
	for _, e := range found {
		if !e.isDir() {
			continue
		}
		uid := types.UID(e.name)
		x.report.Pods = append(x.report.Pods, uid)
		volumes := x.pod(dir, uid)
		if known != nil && !known[uid] {
			x.orphan(filepath.Join(dir.Name(), e.name), uid, volumes)
		}
	}
}

// pod looks at one pod's volumes, and returns their number.
func (x *examination) pod(pods *os.File, uid types.UID) (volumes int) {
	x.failed(x.tree.below(pods, filepath.Join(string(uid), "volumes"), func(in *os.File, plugin entry) {
		x.failed(x.tree.below(in, plugin.name, func(in *os.File, volume entry) {
			volumes++
			if plugin.name == "kubernetes.io~csi" && volume.isDir() {
				x.csiVolume(in, uid, volume.name)
			}
		}))
	}))
	x.failed(x.tree.below(pods, filepath.Join(string(uid), "volumeDevices"), func(in *os.File, plugin entry) {
		x.failed(x.tree.below(in, plugin.name, func(*os.File, entry) { volumes++ }))
	}))
	return volumes
}

// orphan is a directory of a pod that there is not, unless it is empty: the kubelet removes such
// ones itself, in time.
func (x *examination) orphan(path string, uid types.UID, volumes int) {
	mounted := 0
	why := "no pod in the list has this UID"
	advice := "When nothing uses them: umount the mounts below it, remove the empty directories; podvol fsck --adopt shows what a take-over would make of it."
	if x.report.KnownBy == "cgroups" {
		why = "no container of such a pod runs: it has no cgroup, as other pods have"
		advice = "Make sure that the pod does not exist (kubectl get pods -A -o json, and fsck --pods). " + advice
	}
	for _, e := range x.mounts {
		if !pathin.Strictly(path, e.Target) {
			continue
		}
		mounted++
		x.find(Finding{Kind: LeakedMount, PodUID: uid, Volume: filepath.Base(e.Target), Path: e.Target, Err: errors.New(why), Advice: "When nothing uses it: umount " + e.Target + "."})
	}
	if volumes+mounted > 0 {
		x.find(Finding{Kind: Orphan, PodUID: uid, Path: path, Err: fmt.Errorf("%s; it has %d volumes and %d mounts", why, volumes, mounted), Advice: advice})
	}
}

// podsOfCgroups finds the pods that have a cgroup, with the cgroupfs driver
// (kubepods/burstable/pod<uid>) and systemd's (kubepods-burstable-pod<uid>.slice, the UID with
// underscores). The mount point has a hierarchy, or one for each controller.
func podsOfCgroups(dir string) map[types.UID]bool {
	found := make(map[types.UID]bool)
	t := &tree{left: 100_000}
	root, err := openRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	tops, err := t.entries(root)
	if err != nil {
		return nil
	}
	for _, top := range tops {
		if !top.isDir() {
			continue
		}
		if isKubepods(top.name) {
			t.podCgroups(root, top.name, 3, found)
			continue
		}
		controller, err := openRoot(filepath.Join(dir, top.name)) // a mount of its own
		if err != nil {
			continue
		}
		below, _ := t.entries(controller)
		for _, e := range below {
			if isKubepods(e.name) {
				t.podCgroups(controller, e.name, 3, found)
			}
		}
		controller.Close()
	}
	return found
}

func isKubepods(name string) bool { return name == "kubepods" || name == "kubepods.slice" }

func (t *tree) podCgroups(dir *os.File, name string, depth int, found map[types.UID]bool) {
	if depth == 0 {
		return
	}
	_ = t.below(dir, name, func(in *os.File, e entry) { // a cgroup that has gone has no pod
		if !e.isDir() {
			return
		}
		base := strings.TrimSuffix(e.name, ".slice")
		at := strings.LastIndex(base, "pod")
		switch uid := strings.ReplaceAll(base[max(at, 0):], "_", "-"); {
		case base == e.name && at == 0:
			found[types.UID(strings.TrimPrefix(base, "pod"))] = true
		case base != e.name && at > 0 && strings.HasSuffix(base[:at], "-"):
			found[types.UID(strings.TrimPrefix(uid, "pod"))] = true
		default:
			t.podCgroups(in, e.name, depth-1, found)
		}
	})
}
