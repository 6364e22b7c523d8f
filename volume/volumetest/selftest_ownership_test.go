package volumetest

import (
	"context"
	"os"
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
)

// giving is note whose writable volumes are given to the pod's fsGroup by give.
func giving(give func(ctx context.Context, dir string, args volume.MounterArgs) error) func() volume.VolumePlugin {
	return altered(func() alteration {
		attributes := func(m *noteMounter) volume.Attributes {
			return volume.Attributes{ReadOnly: m.readOnly, Managed: !m.readOnly}
		}
		return alteration{attributes: attributes, setUpWith: func(ctx context.Context, m *noteMounter, dir string, args volume.MounterArgs) error {
			if err := m.SetUpAt(ctx, dir, args); err != nil || m.readOnly {
				return err
			}
			return give(ctx, dir, args)
		}}
	})
}

func giveAll(ctx context.Context, dir string, args volume.MounterArgs) error {
	return fsgroup.Set(ctx, dir, volume.Attributes{Managed: true}, args)
}

// givingSuite has a volume that pods may write to beside note's.
func givingSuite(s *Suite) {
	s.Working = append(s.Working, Case{
		Name: "writable", Spec: noteDirectory(false), Shared: true,
		Prepare: func(n *Node) { n.Write(map[string]string{noteFile: noteText + noteCanary}) },
		Want:    Want{Files: map[string]File{noteFile: {Content: noteText + noteCanary}}},
	})
}

func TestGivingPasses(t *testing.T) {
	s := noteSuite()
	givingSuite(&s)
	Run(t, giving(giveAll), s)
}

func brokenOwnership() []broken {
	all := []broken{
		{
			defect: "it gives the volume's own directory alone to the group", breaks: "ownership/fsgroup",
			plugin: giving(func(ctx context.Context, dir string, args volume.MounterArgs) error {
				if args.FsGroup == nil {
					return nil
				}
				dir, err := os.Readlink(dir)
				if err != nil {
					return nil // a directory that is right
				}
				info, err := os.Stat(dir)
				if err != nil {
					return err
				}
				if err := os.Chown(dir, -1, int(*args.FsGroup)); err != nil {
					return err
				}
				return os.Chmod(dir, info.Mode()|0o770|os.ModeSetgid)
			}),
		},
		{
			defect: "it gives to the group what is not managed", breaks: "ownership/unmanaged",
			plugin: altered(func() alteration {
				return alteration{setUpWith: func(ctx context.Context, m *noteMounter, dir string, args volume.MounterArgs) error {
					if err := m.SetUpAt(ctx, dir, args); err != nil {
						return err
					}
					return giveAll(ctx, dir, args)
				}}
			}),
		},
		{
			defect: "its progress goes back", breaks: "ownership/progress",
			plugin: giving(func(ctx context.Context, dir string, args volume.MounterArgs) error {
				err := giveAll(ctx, dir, args)
				if args.Progress != nil {
					args.Progress(volume.Progress{Doing: fsgroup.Doing, Done: 0})
				}
				return err
			}),
		},
	}
	for i := range all {
		all[i].suite = givingSuite
	}
	return all
}
