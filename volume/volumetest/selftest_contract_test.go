package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/internal/podmount"
)

func brokenContract() []broken {
	return []broken{
		{
			defect: "its name has no namespace",
			breaks: "contract/plugin-name",
			also:   []string{"hostility/canary", "restart/from-record"},
			alter:  func() alteration { return alteration{pluginName: func() string { return "note" }} },
		},
		{
			defect: "it needs a role to start",
			breaks: "contract/init",
			alter: func() alteration {
				return alteration{init: func(p *note, host volume.VolumeHost) error {
					if _, err := volume.Role[volume.SecretGetter](host); err != nil {
						return err
					}
					return p.Init(host)
				}}
			},
		},
		{
			defect: "it makes the plugins' directory to start",
			breaks: "contract/init",
			alter: func() alteration {
				return alteration{init: func(p *note, host volume.VolumeHost) error {
					return errors.Join(p.Init(host), os.MkdirAll(filepath.Dir(host.GetPluginDir("any")), 0o755))
				}}
			},
		},
		{
			defect: "it asks for the secret to name the volume",
			breaks: "contract/can-support",
			alter: func() alteration {
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					if name := secretOf(spec); name != "" {
						secrets, err := volume.Role[volume.SecretGetter](p.host)
						if err != nil {
							return "", err
						}
						if _, err := secrets.GetSecret(context.Background(), "default", name); err != nil {
							return "", err
						}
					}
					return p.GetVolumeName(spec)
				}}
			},
		},
		{
			defect: "it names a volume by counting",
			breaks: "contract/volume-name",
			alter: func() alteration {
				var count atomic.Int64
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					name, err := p.GetVolumeName(spec)
					return fmt.Sprint(name, count.Add(1)), err
				}}
			},
		},
		{
			defect: "it names a volume by what comes first in a map",
			breaks: "contract/volume-name",
			maybe:  []string{"contract/descriptions"},
			suite:  func(s *Suite) { s.Working = s.Working[:1] },
			alter: func() alteration {
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					_, err := p.GetVolumeName(spec)
					for name := range map[string]bool{"driver": true, "text": true} {
						return name, err
					}
					return "", err
				}}
			},
		},
		{
			defect: "it names a volume by source and volume",
			breaks: "contract/volume-name",
			alter: func() alteration {
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					name, err := p.GetVolumeName(spec)
					return name + spec.Name(), err
				}}
			},
		},
		{
			defect: "it names a source that pods share by the volume",
			breaks: "contract/volume-name",
			suite:  func(s *Suite) { s.Working = s.Working[:1]; s.Working[0].Shared = true },
			also:   []string{"lifecycle/several-pods"}, // the suite is wrong
			alter: func() alteration {
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					_, err := p.GetVolumeName(spec)
					return spec.Name(), err
				}}
			},
		},
		{
			defect: "it names what it does not support",
			breaks: "contract/foreign-specs",
			also:   []string{"contract/volume-name"}, // by the volume alone
			alter: func() alteration {
				return alteration{volumeName: func(_ *note, spec *volume.Spec) (string, error) { return "note-" + spec.Name(), nil }}
			},
		},
		{
			defect: "it claims every inline volume",
			breaks: "contract/foreign-specs",
			alter: func() alteration {
				return alteration{canSupport: func(p *note, spec *volume.Spec) bool {
					return p.CanSupport(spec) || spec != nil && spec.Volume != nil && spec.Volume.VolumeSource != v1.VolumeSource{}
				}}
			},
		},
		{
			defect: "it invents a pod where there is none",
			breaks: "contract/missing-pod",
			alter: func() alteration {
				return alteration{newMounter: func(p *note, spec *volume.Spec, pod *v1.Pod) (*noteMounter, error) {
					if pod == nil {
						pod = fakehost.Pod("none")
					}
					return p.newMounter(spec, pod)
				}}
			},
		},
		{
			defect: "it looks for the secret after mounting",
			breaks: "contract/refused",
			also:   []string{"cancel/all-hangs", "cancel/hang", "faults/nothing-done"},
			alter:  func() alteration { return alteration{setUpAt: mountFirst} },
		},
		{
			defect: "it leaves its mark on the pod",
			breaks: "contract/arguments",
			maybe:  []string{"concurrency/questions"}, // under the race detector
			alter: func() alteration {
				return alteration{dependsOn: func(p *note, spec *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
					pod.Annotations = map[string]string{"noted": "yes"}
					return p.DependsOn(spec, pod)
				}}
			},
		},
		{
			defect: "its access modes are its own slice",
			breaks: "contract/access-modes",
			alter: func() alteration {
				modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
				return alteration{accessModes: func() []v1.PersistentVolumeAccessMode { return modes }}
			},
		},
		{
			defect: "it takes every spec that depends on something for its own",
			breaks: "contract/descriptions",
			alter: func() alteration {
				return alteration{dependsOn: func(_ *note, spec *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
					if spec.PersistentVolume != nil {
						return nil
					}
					return []volume.ObjectRef{volume.NewObjectRef("Secret", pod.Namespace, spec.Volume.FlexVolume.SecretRef.Name)}
				}}
			},
		},
	}
}

// mountFirst is SetUpAt, but for the order.
func mountFirst(ctx context.Context, m *noteMounter, dir string) error {
	if m.path == "" {
		request := mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: []string{"mode=0755"}}
		made, err := podmount.SetUp(ctx, m.Host.GetMounter(), request, func(e mount.Entry) bool { return e.FSType == "tmpfs" })
		if err != nil {
			return err
		}
		if _, err := m.signature(ctx); err != nil {
			if made {
				return undone(ctx, m, dir, err)
			}
			return err
		}
	}
	return m.SetUpAt(ctx, dir, noArgs)
}
