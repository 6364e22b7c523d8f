package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager"
)

// labels says of a level which label files have.
type labels struct{}

func (labels) FileLabel(options *v1.SELinuxOptions) (string, error) {
	switch options.Level {
	case "":
		return "", nil
	case "bad":
		return "", volume.Invalid("level", "is bad")
	}
	return "system_u:object_r:container_file_t:" + options.Level, nil
}

// labelledDisk is a disk that can be mounted with a label.
type labelledDisk struct {
	*disk
	unable bool
}

func (d labelledDisk) SupportsSELinuxContextMount(context.Context, *volume.Spec) (bool, error) {
	return !d.unable, nil
}

func (d labelledDisk) NewDeviceMounter() (volume.DeviceMounter, error) { return d, nil }

func (d labelledDisk) MountDevice(ctx context.Context, s *volume.Spec, _, path string, args volume.DeviceMounterArgs) error {
	return d.calls.Do(ctx, diskCall{Op: "MountDevice", Whose: pdName(s), Args: args.SELinuxLabel}, func() error {
		request := mount.Request{Source: "/dev/" + pdName(s), Target: path, FSType: "ext4", Options: selinux.AddMountOption(nil, args.SELinuxLabel)}
		_, err := podmount.SetUp(ctx, d.host.GetMounter(), request, anyMount)
		return err
	})
}

func (d labelledDisk) NewMounter(s *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := d.disk.NewMounter(s, pod)
	return labelledVolume{m, d.disk, s.ReadOnly}, err
}

type labelledVolume struct {
	volume.Mounter
	disk     *disk
	readOnly bool
}

func (v labelledVolume) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: v.readOnly, Managed: !v.readOnly, SELinuxRelabel: true}
}

// SetUp fails the test if the pod's own mount is asked for another label.
func (v labelledVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	for _, c := range v.disk.calls.Calls() {
		if c.Op == "MountDevice" && c.Args == args.SELinuxLabel {
			return v.Mounter.SetUp(ctx, args)
		}
	}
	return fmt.Errorf("no device was mounted with %q", args.SELinuxLabel)
}

// withLabels gives the world SELinux and the disk "a" as claim "data".
func (w *world) withLabels(unable bool, modes ...v1.PersistentVolumeAccessMode) *disk {
	d := &disk{t: w.t}
	w.plugins, w.seLinux = besides(labelledDisk{d, unable}), labels{}
	claim, pv := boundPair("data", "pv-a")
	claim.Spec.AccessModes, pv.Spec.AccessModes = modes, modes
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
	w.add(claim, pv)
	return d
}

func labelledPod(name, level string) *v1.Pod {
	pod := newPod(name, claimVolume("v", "data", false))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/data"}}
	return pod
}

func TestMountLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	policy := func(p v1.PodSELinuxChangePolicy) func(*v1.Pod) {
		return func(pod *v1.Pod) { pod.Spec.SecurityContext.SELinuxChangePolicy = &p }
	}
	addContainer := func(level string, mounts bool) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			c := v1.Container{Name: "other", Image: "i", SecurityContext: &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}}
			if mounts {
				c.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/data"}}
			}
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	none := func(*v1.Pod) {}
	for name, tc := range map[string]struct {
		mode   v1.PersistentVolumeAccessMode
		change func(*v1.Pod)
		world  func(*world)
		unable bool
		want   string
	}{
		"once per pod":                        {v1.ReadWriteOncePod, none, nil, false, label},
		"once per node":                       {v1.ReadWriteOnce, none, nil, false, ""},
		"once per node, as a kubelet of 1.37": {v1.ReadWriteOnce, none, func(w *world) { w.seLinuxMount = true }, false, label},
		"once per node, policy MountOption":   {v1.ReadWriteOnce, policy(v1.SELinuxChangePolicyMountOption), nil, false, label},
		"once per pod, policy Recursive":      {v1.ReadWriteOncePod, policy(v1.SELinuxChangePolicyRecursive), nil, false, ""},
		"1.37, policy Recursive":              {v1.ReadWriteOnce, policy(v1.SELinuxChangePolicyRecursive), func(w *world) { w.seLinuxMount = true }, false, ""},
		"a plugin that cannot":                {v1.ReadWriteOncePod, none, nil, true, ""},
		"a node without SELinux":              {v1.ReadWriteOncePod, none, func(w *world) { w.seLinux = nil }, false, ""},
		"no level":                            {v1.ReadWriteOncePod, func(p *v1.Pod) { p.Spec.SecurityContext.SELinuxOptions.Level = "" }, nil, false, ""},
		"no options":                          {v1.ReadWriteOncePod, func(p *v1.Pod) { p.Spec.SecurityContext = nil }, nil, false, ""},
		"two containers that agree":           {v1.ReadWriteOncePod, addContainer("s0:c1,c2", true), nil, false, label},
		"one that does not mount it":          {v1.ReadWriteOncePod, addContainer("s0:c8,c9", false), nil, false, label},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := w.withLabels(tc.unable, tc.mode)
			if tc.world != nil {
				tc.world(w)
			}
			manager, stop := w.start()
			pod := labelledPod("web", "s0:c1,c2")
			tc.change(pod)
			mustSetUp(t, manager, pod)
			entry, mounted, err := w.fake.Table().At(d.place("pv-a"))
			if err != nil || !mounted {
				t.Fatal(entry, mounted, err)
			}
			i := slices.IndexFunc(entry.SuperOptions, func(o string) bool { return strings.HasPrefix(o, "context=") })
			switch {
			case tc.want == "" && i >= 0, tc.want != "" && (i < 0 || entry.SuperOptions[i] != `context="`+tc.want+`"`):
				t.Errorf("mounted with %q, want %q", entry.SuperOptions, tc.want)
			}
			relabels := func() {
				t.Helper()
				mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
				if err != nil || len(mounts) != 1 || mounts[0].SELinuxRelabel != (tc.want == "") {
					t.Errorf("mounts %+v, %v", mounts, err)
				}
			}
			relabels()
			stop()
			manager, _ = w.start()
			mustSetUp(t, manager, pod)
			relabels()
			mustTearDown(t, manager, pod)
			w.assertNoDevices()
		})
	}
}

func TestContainersWithDifferentLabels(t *testing.T) {
	w := newWorld(t)
	d := w.withLabels(false, v1.ReadWriteOncePod)
	manager, _ := w.start()
	pod := labelledPod("web", "s0:c1,c2")
	pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i", VolumeMounts: pod.Spec.Containers[0].VolumeMounts,
		SecurityContext: &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c8,c9"}}}}
	_, err := manager.SetUpPod(t.Context(), pod)
	if e, ok := errors.AsType[*volume.Failure](err); !ok || e.Cause != volumemanager.ErrSELinuxConflict || e.Subject != "v" || strings.Count(e.What, " and ") != 1 {
		t.Errorf("err = %v", err)
	}
	if calls := d.log(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
	w.untouched()
}

func TestLabelsThatAreNone(t *testing.T) {
	for _, level := range []string{"bad", `s0",exec,context="`} {
		w := newWorld(t)
		w.withLabels(false, v1.ReadWriteOncePod)
		manager, _ := w.start()
		_, err := manager.SetUpPod(t.Context(), labelledPod("web", level))
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
			t.Errorf("level %s: %v", level, err)
		}
		w.untouched()
	}
}

// Two pods with different labels cannot share a device; the second one gets it
// when the first one has gone, at once.
func TestConflictingLabels(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.seLinuxMount = true
				d := w.withLabels(false, v1.ReadWriteMany)
				manager, stop := w.start()
				first, same, other := labelledPod("first", "s0:c1,c2"), labelledPod("same", "s0:c1,c2"), labelledPod("other", "s0:c8,c9")
				mustSetUp(t, manager, first, same)
				if restart {
					stop()
					manager, stop = w.start()
				}
				d.log()
				_, err := manager.SetUpPod(t.Context(), other)
				e, ok := errors.AsType[*volume.Failure](err)
				if !ok || e.Cause != volumemanager.ErrSELinuxConflict || !strings.Contains(e.What, `:s0:c1,c2" and "`) || !strings.HasSuffix(e.What, `:s0:c8,c9"`) || volume.IsUncertain(err) {
					t.Errorf("err = %v", err)
				}
				const says = `other Warning FailedMount MountVolume.SetUp failed for volume "pv-a" : `
				if got := w.events.all(); len(got) == 0 || !strings.HasPrefix(got[0], says) || !strings.Contains(got[0], "conflicting SELinux labels of volume pv-a") {
					t.Errorf("events %q", got)
				}
				if n := len(w.records()); n != 2 {
					t.Errorf("%d records", n)
				}
				mustTearDown(t, manager, first, same)
				synctest.Wait()
				if err := manager.WaitForMounted(t.Context(), other.UID); err != nil {
					t.Fatal(err)
				}
				want := []string{"TearDown uid-first", "TearDown uid-same", "UnmountDevice pv-a", "MountDevice a", "SetUp uid-other"}
				if diff := cmpDiff(want, d.log()); diff != "" {
					t.Error(diff)
				}
				mustTearDown(t, manager, other)
				w.assertNoDevices()
				stop()
			})
		})
	}
}

// TestAReadOnlyClaimIsNotRelabelled looks at volumes that no mount option labels.
func TestAReadOnlyClaimIsNotRelabelled(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		w := newWorld(t)
		w.withLabels(true, v1.ReadWriteOnce)
		manager, _ := w.start()
		pod := labelledPod("web", "s0:c1,c2")
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = readOnly
		mustSetUp(t, manager, pod)
		mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
		if err != nil || len(mounts) != 1 || mounts[0].SELinuxRelabel == readOnly {
			t.Errorf("read-only %v: %+v, %v", readOnly, mounts, err)
		}
	}
}
