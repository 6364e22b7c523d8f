package volumetest

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// Suite is what an author knows of a plugin: volumes that must work, and
// volumes that must be refused. [Run] checks the rest of the contract by them.
type Suite struct {
	// Working are the volumes that must work; at least one.
	Working []Case
	// Refused are the volumes that must be refused.
	Refused []RefusedCase
	// Objects are known to the roles of every host: secrets, config maps,
	// cluster trust bundles.
	Objects []metav1.Object
	// Canary is a secret that is part of the contents or the sensitive mount
	// options of every working case. It must not show anywhere else. Empty:
	// the plugin handles no secrets.
	Canary string
	// Equal says whether a rebuilt spec that the plugin calls complete is as good
	// as the original. Nil: if both are inline or both persistent, source,
	// mount options and read-only wish must be the same. It adds to what is
	// asked anyway: the same name, attributes, calls of the mounter and roles.
	Equal func(original, rebuilt *volume.Spec) bool
	// Storage is what the plugin must provision and delete: at least one, of a
	// plugin that provisions.
	Storage []StorageCase
	// FileSystems say, by their types, what mounts of file systems show that the
	// fake does not know, such as overlay and squashfs: each node's fake is given
	// them by [fakemount.Mounter.ServeType]. On a kernel they are not used.
	FileSystems map[string]fakemount.Content
	// Waivers are the checks that the plugin is known to fail.
	Waivers []Waiver
}

// Case is a volume that must work.
type Case struct {
	Name string
	// Spec returns the volume; each call returns a new value. Where the source
	// is a path it lies below the node's Dir. It is also called where nothing
	// is prepared. A PersistentVolume of volumeMode Block is used by the calls
	// of a block volume only, all others by those of file systems.
	Spec func(*Node) *volume.Spec
	// Prepare, if not nil, makes the source before anything is called: files
	// in the node's Dir, an export by [Node.Serve].
	Prepare func(*Node)
	// Pod, if not nil, changes the pod that uses the volume. It is called for
	// several pods.
	Pod func(*v1.Pod)
	// Args are the pod's wishes.
	Args volume.MounterArgs
	// Shared: every pod that uses this source sees the same data. Otherwise
	// each has its own.
	Shared bool
	// Want is what SetUp must show.
	Want Want
	// Update, if not nil, changes what a volume that is set up shows, such as
	// an object, by [fakehost.Host.Add]; another SetUp must then show the files Updated.
	Update  func(*Node)
	Updated map[string]File
	// NoKernel says why the case cannot run on a real kernel, such as that no
	// server is there to mount from. Empty: it can.
	NoKernel string

	// block is what [Suite.findBlocks] found.
	block bool
}

// StorageCase is storage that a [volume.ProvisionableVolumePlugin] must make for
// any claim of 1Gi, and delete again, if it is a [volume.DeletableVolumePlugin].
type StorageCase struct {
	Name string
	// Prepare, if not nil, makes where the storage will be, such as an export
	// by [Node.Serve]. All that the plugin makes for a claim must lie below the
	// node's Dir, or the checks do not see what it leaks; what is there before
	// belongs to others and must stay as it is.
	Prepare func(*Node)
	// Parameters, if not nil, returns the storage class's. Each call returns a
	// new map.
	Parameters func(*Node) map[string]string
	// MountOptions are the storage class's.
	MountOptions []string
	// Keeps: Delete succeeds and leaves the data somewhere below the node's
	// Dir, where it was or elsewhere. Otherwise Dir is afterwards as it was
	// before Provision.
	Keeps bool
	// NoKernel is as in [Case].
	NoKernel string
}

// Want is what a volume that is set up must show.
type Want struct {
	// Files are the files by their paths in the volume. There may be others,
	// unless Exact is set.
	Files map[string]File
	// Exact: the volume shows nothing but Files, and the directories in which
	// they are. Names at its top that begin with ".." are the plugin's own.
	Exact bool
	// Mode is the mode of the volume's own directory; 0: not looked at.
	Mode fs.FileMode
	// ReadOnly is that of [volume.Attributes].
	ReadOnly bool
	// Mount is what the mount table must show; nil: not looked at.
	Mount *Mount
}

// File is a file that a volume must show.
type File struct {
	Content string
	// Varies: the content is another each time, and not looked at.
	Varies bool
	// Mode are the permission bits; 0: not looked at.
	Mode fs.FileMode
	// UID and GID own the file; nil: not looked at.
	UID, GID *int64
}

// Mount is an entry that the mount table must have. Empty fields are not
// looked at.
type Mount struct {
	Source, FSType string
	// Options are among those of the mount or of its file system.
	Options []string
}

// RefusedCase is a volume that must be refused, when its mounter is made or
// when it is set up.
type RefusedCase struct {
	Name    string
	Spec    func(*Node) *volume.Spec
	Prepare func(*Node)
	Pod     func(*v1.Pod)
	// Because is a part of the error's text that tells the pod's author what
	// to change. It must not be empty: any mistake would do as a refusal.
	Because string
	// NoKernel is as in [Case].
	NoKernel string
}

// Waiver says that a plugin is known to fail a check. The check runs all the
// same and passes, saying that it is waived, as the end of the run does again.
// One that does not fail makes the run fail, so that waivers go once they are
// not needed any more. One that covers nothing that runs, or what another
// covers as well, makes the suite wrong.
type Waiver struct {
	// Check is the check's name, such as "lifecycle/setup-n-times".
	Check string
	// Reason says why a user can live with it.
	Reason string
	// Case restricts the waiver to one case; empty: all of them.
	Case string
	// On restricts it to "fake" or "kernel"; empty: both.
	On string
}

// Inline returns a [Case.Spec] for a volume "vol" with this source.
func Inline(source v1.VolumeSource) func(*Node) *volume.Spec {
	return func(*Node) *volume.Spec {
		return volume.NewSpecFromVolume(&v1.Volume{Name: "vol", VolumeSource: *source.DeepCopy()})
	}
}

// Persistent returns a [Case.Spec] for a PersistentVolume "pv" of 1Gi with
// this source, which the pod uses read-only or not.
func Persistent(source v1.PersistentVolumeSource, readOnly bool) func(*Node) *volume.Spec {
	return func(*Node) *volume.Spec {
		return volume.NewSpecFromPersistentVolume(specs.PersistentVolume(source), readOnly)
	}
}

// PersistentBlock is [Persistent] with volumeMode Block, for pods that write.
func PersistentBlock(source v1.PersistentVolumeSource) func(*Node) *volume.Spec {
	return func(*Node) *volume.Spec {
		pv := specs.PersistentVolume(source)
		pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
		return volume.NewSpecFromPersistentVolume(pv, false)
	}
}

// findBlocks asks each case's spec for its mode.
func (s *Suite) findBlocks(t testing.TB) {
	t.Helper()
	s.Working = slices.Clone(s.Working)
	for i, c := range s.Working {
		if c.Spec != nil {
			h := fakehost.New(t)
			s.Working[i].block = specs.IsBlock(c.Spec(&Node{Host: h, Dir: tree.New(t)}))
		}
	}
}

// checkBlocks finds a capability without a case, and the other way round.
func (s *Suite) checkBlocks(p volume.VolumePlugin) error {
	_, able := volume.AsBlock(p)
	i := slices.IndexFunc(s.Working, func(c Case) bool { return c.block })
	switch {
	case able && i < 0:
		return errors.New("the plugin is a BlockVolumePlugin, but no working case has volumeMode Block; add one, see PersistentBlock")
	case !able && i >= 0:
		return fmt.Errorf("case %q has volumeMode Block, but the plugin is no BlockVolumePlugin", s.Working[i].Name)
	}
	return nil
}

// checkStorage finds a capability without a case, and the other way round.
func (s *Suite) checkStorage(p volume.VolumePlugin) error {
	_, able := volume.AsProvisionable(p)
	switch {
	case able && len(s.Storage) == 0:
		return errors.New("the plugin is a ProvisionableVolumePlugin, but the suite has no Storage; give it at least one StorageCase")
	case !able && len(s.Storage) > 0:
		return fmt.Errorf("the suite has the Storage %q, but the plugin is no ProvisionableVolumePlugin", s.Storage[0].Name)
	}
	return nil
}

// check finds the mistakes in a suite that would make checks vacuous.
func (s *Suite) check(all []check, p volume.VolumePlugin) error {
	var errs []error
	if len(s.Working) == 0 {
		errs = append(errs, errors.New("the suite has no working case; give it at least one volume that the plugin must mount"))
	}
	names := map[string]bool{}
	for _, c := range s.Working {
		errs = append(errs, checkCase(names, c.Name, c.Spec != nil))
		if (c.Update == nil) != (len(c.Updated) == 0) {
			errs = append(errs, fmt.Errorf("case %q must have both Update and Updated, or neither", c.Name))
		}
	}
	refused := map[string]bool{}
	for _, c := range s.Refused {
		errs = append(errs, checkCase(refused, c.Name, c.Spec != nil))
		if c.Because == "" {
			errs = append(errs, fmt.Errorf("refused case %q has no Because; give a part of the error that tells what to change", c.Name))
		}
	}
	storage := map[string]bool{}
	for _, c := range s.Storage {
		errs = append(errs, checkCase(storage, c.Name, true))
	}
	errs = append(errs, s.checkBlocks(p), s.checkStorage(p))
	for i, w := range s.Waivers {
		errs = append(errs, w.check(all, names, refused, storage))
		if slices.ContainsFunc(s.Waivers[:i], w.overlaps) {
			errs = append(errs, fmt.Errorf("check %q of case %q is waived twice; an empty Case or On covers all", w.Check, w.Case))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// These can be told only of a suite that is right otherwise.
	for _, w := range s.Waivers {
		errs = append(errs, s.checkRuns(w, all, p))
	}
	return errors.Join(errs...)
}

func checkCase(seen map[string]bool, name string, hasSpec bool) error {
	switch {
	case name == "":
		return errors.New("a case has no name")
	case seen[name]:
		return fmt.Errorf("two cases are named %q", name)
	case !hasSpec:
		return fmt.Errorf("case %q has no Spec", name)
	}
	seen[name] = true
	return nil
}

func (w Waiver) check(all []check, named ...map[string]bool) error {
	if w.Reason == "" {
		return fmt.Errorf("the waiver of check %q has no reason; say why a user can live with it", w.Check)
	}
	if w.On != "" && w.On != string(onFake) && w.On != string(onKernel) {
		return fmt.Errorf("the waiver of check %q is restricted to %q; it can be %q, %q or empty", w.Check, w.On, onFake, onKernel)
	}
	has := func(names map[string]bool) bool { return names[w.Case] }
	if w.Case != "" && !slices.ContainsFunc(named, has) {
		return fmt.Errorf("the waiver of check %q is for case %q, which the suite does not have", w.Check, w.Case)
	}
	for _, c := range all {
		if c.name == w.Check {
			return nil
		}
	}
	return fmt.Errorf("a waiver is for check %q, which does not exist; see the package documentation for their names", w.Check)
}

// overlaps reports whether two waivers can cover the same.
func (w Waiver) overlaps(other Waiver) bool {
	same := func(a, b string) bool { return a == b || a == "" || b == "" }
	return w.Check == other.Check && same(w.Case, other.Case) && same(w.On, other.On)
}

// checkRuns refuses a waiver of what never runs: nothing would ever tell that
// it is not needed.
func (s *Suite) checkRuns(w Waiver, all []check, p volume.VolumePlugin) error {
	for _, c := range all {
		if c.name != w.Check {
			continue
		}
		if c.needs != nil && !c.needs.has(p) {
			return fmt.Errorf("check %q is waived, but never runs: the plugin is no %s", w.Check, c.needs.name)
		}
		for _, e := range []environment{onFake, onKernel} {
			covered := func(u *unit) bool { return w.covers(e, c, u) }
			if s.runsOn(e, c) && slices.ContainsFunc((runner{suite: s}).units(e, c), covered) {
				return nil
			}
		}
	}
	return fmt.Errorf("check %q is waived for case %q on %q, where it never runs; empty stands for all", w.Check, w.Case, w.On)
}

// runsOn reports whether the check runs there at all.
func (s *Suite) runsOn(e environment, c check) bool {
	return c.runsOn(e) && (e == onFake || s.onKernel())
}

// onKernel reports whether anything of the suite can run on a kernel.
func (s *Suite) onKernel() bool {
	return slices.ContainsFunc(s.Working, func(c Case) bool { return c.NoKernel == "" })
}

// Write makes files in the node's Dir, by their paths there.
func (n *Node) Write(files map[string]string) {
	n.T().Helper()
	tree.Write(n.T(), n.Dir, files)
}

// Serve makes the fake show the node's Dir, with these files, to mounts of a
// source: an NFS export, a device.
func (n *Node) Serve(source string, files map[string]string) {
	n.T().Helper()
	if n.Kernel {
		n.T().Fatalf("nothing serves %s on a real kernel; say so in the case's NoKernel", source)
	}
	n.Write(files)
	n.Fake.Serve(source, n.Dir)
}
