package volumetest

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumesource"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// contractChecks are about what a plugin answers without doing anything.
func contractChecks() []check {
	return []check{
		{
			name:     "contract/plugin-name",
			proves:   "GetPluginName returns a qualified name, such as \"example.com/archive\", which never changes.",
			fakeOnly: true,
			once:     checkPluginName,
		},
		{
			name:     "contract/init",
			proves:   "Init does no I/O and needs no role: a role is asked for when a pod needs it, so that a host without it can serve everything else.",
			fakeOnly: true,
			once:     checkInit,
		},
		{
			name:     "contract/can-support",
			proves:   "CanSupport is true for the plugin's own kind of source, judged by the kind only, and it and everything else that looks at a spec does no I/O.",
			fakeOnly: true,
			each:     checkNoIO,
		},
		{
			name:     "contract/volume-name",
			proves:   "GetVolumeName returns the same name for every spec that means the same data, however often it is asked, also of another instance: a name of the source, whatever the volume is called. Where each pod has data of its own, the volume's name may be part of it; a PersistentVolume's may be all of it.",
			fakeOnly: true,
			each:     checkVolumeName,
		},
		{
			name:     "contract/foreign-specs",
			proves:   "A spec that is nil, empty or of another plugin (of any kind of source of which the suite has no case) is not supported, and is refused with an error and without a panic.",
			fakeOnly: true,
			once:     checkForeignSpecs,
		},
		{
			name:     "contract/missing-pod",
			proves:   "NewMounter refuses a pod that is missing or has no UID.",
			fakeOnly: true,
			each:     checkMissingPod,
		},
		{
			name:    "contract/refused",
			proves:  "What is invalid is refused before anything is touched, by an error that says so and that leads to what is wrong.",
			refused: checkRefused,
		},
	}
}

// answerChecks are those of what a plugin does with what it is given.
func answerChecks() []check {
	return []check{
		{
			name:   "contract/arguments",
			proves: "A plugin never changes its arguments: spec, pod and options are as before once the volume was set up, refreshed and torn down.",
			each:   checkArguments,
		},
		{
			name:     "contract/access-modes",
			proves:   "GetAccessModes returns what the kind of storage can do: at least one mode, each known to the API and named once, in a slice of the caller's own.",
			fakeOnly: true,
			needs:    capable("PersistentVolumePlugin", volume.AsPersistentVolume),
			once:     checkAccessModes,
		},
		{
			name:     "contract/descriptions",
			proves:   "DescribeSource and DependsOn answer the same for equal specs, do no I/O, and tolerate specs of other plugins.",
			fakeOnly: true,
			each:     checkDescriptions,
		},
	}
}

func checkPluginName(k *kit) {
	p := k.runner.newPlugin()
	name := p.GetPluginName()
	if _, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{p}, fakehost.New(k)); err != nil {
		k.Errorf("the plugin cannot be registered: %v", err)
	}
	if after := p.GetPluginName(); after != name {
		k.Errorf("GetPluginName = %q before Init, %q after it", name, after)
	}
	if other := k.runner.newPlugin().GetPluginName(); other != name {
		k.Errorf("another instance is named %q, this one %q", other, name)
	}
}

func checkInit(k *kit) {
	h := fakehost.New(k)
	root := tree.Snapshot(k, h.RootDir)
	h.Host = volume.Host{RootDir: h.RootDir, NodeName: h.NodeName, Mounter: h.Mounter}
	if err := k.runner.newPlugin().Init(h); err != nil {
		k.Errorf("Init on a host without roles: %v", err)
	}
	assertUntouched(k, h)
	tree.AssertSame(k, "the root", root, tree.Snapshot(k, h.RootDir))
}

// assertUntouched fails if anything was asked of the mounter or a role, or
// anything is below the root.
func assertUntouched(k *kit, h *fakehost.Host) {
	k.Helper()
	if calls := sim.MounterCalls(h); len(calls) > 0 {
		k.Errorf("the mounter was called: %v", calls)
	}
	if calls := h.RoleCalls(); len(calls) > 0 {
		k.Errorf("roles were called: %v", calls)
	}
	for _, left := range h.Leftovers(k) {
		k.Errorf("%s was made", left)
	}
}

func checkNoIO(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	pod := n.pod("a", spec)
	source := tree.Snapshot(k, n.Dir)
	if !n.sim.Plugin.CanSupport(spec) {
		k.Errorf("CanSupport is false for this case's spec")
	}
	if _, err := n.sim.Plugin.GetVolumeName(spec); err != nil {
		k.Errorf("GetVolumeName: %v", err)
	}
	m, err := n.sim.Plugin.NewMounter(spec, pod)
	if err != nil {
		k.Fatalf("NewMounter: %v", err)
	}
	u, err := n.sim.Plugin.NewUnmounter(spec.Name(), pod.UID)
	if err != nil {
		k.Fatalf("NewUnmounter: %v", err)
	}
	m.GetAttributes()
	if path := m.GetPath(); !filepath.IsAbs(path) || filepath.Clean(path) != path {
		k.Errorf("the mounter's GetPath() is %q, which is no clean absolute path", path)
	}
	if path := u.GetPath(); path != "" && path != m.GetPath() {
		k.Errorf("the unmounter's GetPath() is %q, the mounter's %q", path, m.GetPath())
	}
	assertUntouched(k, n.Host)
	tree.AssertSame(k, "the source", source, tree.Snapshot(k, n.Dir))
}

// timesAsked shows an answer that depends on the order of a map.
const timesAsked = 50

func checkVolumeName(k *kit, c Case) {
	n := k.node(c)
	first, err := n.sim.Plugin.GetVolumeName(c.Spec(n))
	if err != nil || first == "" {
		k.Fatalf("GetVolumeName = %q, %v", first, err)
	}
	for _, again := range []*Node{n, n.restart()} {
		for range timesAsked {
			if got, err := again.sim.Plugin.GetVolumeName(c.Spec(n)); got != first || err != nil {
				k.Fatalf("GetVolumeName = %q, %v; before it was %q", got, err, first)
			}
		}
	}
	spec, other := c.Spec(n), n.named("another-name")
	got, err := n.sim.Plugin.GetVolumeName(other)
	switch {
	case err != nil:
		k.Errorf("GetVolumeName of the same source in a volume of another name: %v", err)
	case got == first:
	case spec.PersistentVolume != nil && first == spec.Name() && got == other.Name():
	case !c.Shared && got == strings.ReplaceAll(first, spec.Name(), other.Name()):
	default:
		k.Errorf("GetVolumeName of the same source is %q in volume %s, %q in volume %s", first, spec.Name(), got, other.Name())
	}
	if pv := other.PersistentVolume; pv != nil {
		other = volume.NewSpecFromPersistentVolume(pv, !other.ReadOnly)
		if again, err := n.sim.Plugin.GetVolumeName(other); again != got || err != nil {
			k.Errorf("GetVolumeName = %q, %v, where the pod uses the volume read-only: %v; else it is %q", again, err, other.ReadOnly, got)
		}
	}
}

func checkForeignSpecs(k *kit) {
	n := k.node(Case{})
	pod := fakehost.Pod("a")
	for what, spec := range n.foreignSpecs() {
		if n.sim.Plugin.CanSupport(spec) {
			k.Errorf("CanSupport is true for %s; if the plugin serves that kind, give the suite a case of it", what)
			continue
		}
		if name, err := n.sim.Plugin.GetVolumeName(spec); err == nil {
			k.Errorf("GetVolumeName of %s is %q without an error", what, name)
		}
		if m, err := n.sim.Plugin.NewMounter(spec, pod); err == nil {
			k.Errorf("NewMounter of %s returns %T without an error", what, m)
		}
	}
	assertUntouched(k, n.Host)
}

// foreignSpecs are nil and empty specs, and one with each source of the API.
// The kinds of the suite's cases are among them only where the plugin itself
// says that an empty one is not its own, as those with a driver do.
func (n *Node) foreignSpecs() map[string]*volume.Spec {
	foreign := map[string]*volume.Spec{
		"a nil spec":                         nil,
		"an empty spec":                      {},
		"a volume without source":            volume.NewSpecFromVolume(&v1.Volume{Name: "vol"}),
		"a PersistentVolume without source":  volume.NewSpecFromPersistentVolume(specs.PersistentVolume(v1.PersistentVolumeSource{}), false),
		"a volume without name and source":   volume.NewSpecFromVolume(&v1.Volume{}),
		"a PersistentVolume without a thing": volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false),
	}
	for kind, spec := range specs.OfEachKind() {
		if !n.kit.runner.suite.hasKind(kind, n) || !n.sim.Plugin.CanSupport(spec) {
			foreign[kind] = spec
		}
	}
	return foreign
}

// hasKind reports whether a case of the suite is of this kind.
func (s *Suite) hasKind(kind string, n *Node) bool {
	for _, c := range s.Working {
		if slices.Contains(specs.KindsOf(c.Spec(n)), kind) {
			return true
		}
	}
	for _, c := range s.Refused {
		if slices.Contains(specs.KindsOf(c.Spec(n)), kind) {
			return true
		}
	}
	return false
}

func checkMissingPod(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	noUID := n.pod("a", spec)
	noUID.UID = ""
	for what, pod := range map[string]*v1.Pod{"no pod": nil, "a pod without UID": noUID} {
		if _, err := n.sim.Plugin.NewMounter(spec, pod); err == nil {
			k.Errorf("NewMounter accepts %s", what)
		}
	}
	if _, err := n.sim.Plugin.NewUnmounter(spec.Name(), ""); err == nil {
		k.Errorf("NewUnmounter accepts an empty pod UID")
	}
	if _, err := n.sim.Plugin.NewUnmounter("", "uid"); err == nil {
		k.Errorf("NewUnmounter accepts an empty volume name")
	}
}

func checkRefused(k *kit, refused RefusedCase) {
	n := k.node(Case{Spec: refused.Spec, Prepare: refused.Prepare, Pod: refused.Pod})
	spec := refused.Spec(n)
	source := tree.Snapshot(k, n.Dir)
	err := n.tryToSetUp(k, spec, n.pod("a", spec))
	if err == nil {
		k.Fatalf("the volume is not refused")
	}
	if !strings.Contains(err.Error(), refused.Because) {
		k.Errorf("the error does not contain %q: %v", refused.Because, err)
	}
	if len(n.Mounts(k)) > 0 || len(sim.MounterCalls(n.Host)) > 0 {
		k.Errorf("the mounter was called for a volume that is refused: %v", sim.MounterCalls(n.Host))
	}
	n.AssertTornDown(k)
	tree.AssertSame(k, "the source", source, tree.Snapshot(k, n.Dir))
}

// tryToSetUp returns the first error of making a mounter and setting up. One of
// SetUp must be marked by NothingDone.
func (n *Node) tryToSetUp(k *kit, spec *volume.Spec, pod *v1.Pod) error {
	m, err := n.sim.Plugin.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	v := n.volumeBy(m, spec, pod)
	err = v.SetUpWithDevice(k.Context())
	if volume.IsUncertain(err) {
		k.Errorf("the error of SetUp is not marked by volume.NothingDone, although nothing was touched: %v", err)
	}
	return err
}

func checkArguments(k *kit, c Case) {
	n := k.node(c)
	given := c.Spec(n)
	givenPod := n.pod("a", given)
	spec, pod, args := specs.Copy(given), givenPod.DeepCopy(), copyArgs(c.Args)
	v := n.volumeOf(given, givenPod)
	n.sim.Plugin.CanSupport(v.Spec)
	if _, err := n.sim.Plugin.GetVolumeName(v.Spec); err != nil {
		k.Error(err)
	}
	volumesource.Describe(n.sim.Plugin, v.Spec)
	volume.DependsOn(n.sim.Plugin, v.Spec, v.Pod)
	v.MustSetUp()
	v.MustSetUp()
	// Metrics may be unsupported.
	_, _ = v.GetMetrics(k.Context())
	v.MustTearDown()
	for what, diff := range map[string]string{
		"spec": cmp.Diff(spec, v.Spec), "pod": cmp.Diff(pod, v.Pod), "arguments": cmp.Diff(args, copyArgs(n.working.Args)),
	} {
		if diff != "" {
			k.Errorf("the %s was changed (-before +after):\n%s", what, diff)
		}
	}
}

func copyArgs(a volume.MounterArgs) volume.MounterArgs {
	clone := func(n *int64) *int64 {
		if n == nil {
			return nil
		}
		return new(*n)
	}
	a.FsUser, a.FsGroup = clone(a.FsUser), clone(a.FsGroup)
	if a.DesiredSize != nil {
		a.DesiredSize = new(a.DesiredSize.DeepCopy())
	}
	if a.FSGroupChangePolicy != nil {
		a.FSGroupChangePolicy = new(*a.FSGroupChangePolicy)
	}
	return a
}

func checkAccessModes(k *kit) {
	p, _ := volume.AsPersistentVolume(k.runner.newPlugin())
	modes := slices.Clone(p.GetAccessModes())
	if len(modes) == 0 {
		k.Errorf("there is none")
	}
	known := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
	for i, mode := range modes {
		if !slices.Contains(known, mode) {
			k.Errorf("%q is no access mode of the API", mode)
		}
		if slices.Contains(modes[:i], mode) {
			k.Errorf("%q is there twice", mode)
		}
	}
	for i, given := 0, p.GetAccessModes(); i < len(given); i++ {
		given[i] = "changed by the caller"
	}
	if again := p.GetAccessModes(); !slices.Equal(again, modes) {
		k.Errorf("after the caller changed the slice, the plugin answers %v", again)
	}
}

func checkDescriptions(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	pod := n.pod("a", spec)
	source := volumesource.Describe(n.sim.Plugin, spec)
	if source == "" || strings.ContainsAny(source, "\n\x00") {
		k.Errorf("DescribeSource = %q, which is no short word for people", source)
	}
	refs := volume.DependsOn(n.sim.Plugin, spec, pod)
	for _, ref := range refs {
		if ref.Kind == "" || ref.Name == "" && ref.Namespace != "" {
			k.Errorf("DependsOn names an object without kind, or all of one namespace: %v", ref)
		}
	}
	again := n.restart()
	if got := volumesource.Describe(again.sim.Plugin, c.Spec(n)); got != source {
		k.Errorf("DescribeSource = %q, then %q", source, got)
	}
	if diff := cmp.Diff(refs, volume.DependsOn(again.sim.Plugin, c.Spec(n), pod)); diff != "" {
		k.Errorf("DependsOn answers differently for an equal spec:\n%s", diff)
	}
	for _, foreign := range n.foreignSpecs() {
		if d, ok := n.sim.Plugin.(volumesource.Describer); ok {
			d.DescribeSource(foreign)
		}
		volume.DependsOn(n.sim.Plugin, foreign, pod)
	}
	assertUntouched(k, n.Host)
}
