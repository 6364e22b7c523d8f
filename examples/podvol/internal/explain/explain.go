// Package explain says of the volumes of a pod all that is known, for podvol explain: by the podvol
// run-node that keeps them, or else by the records and the mount table.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/fields"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config is what the command gets of its program.
type Config struct {
	Out, Err io.Writer
	// Usage makes the error of a wrong command line.
	Usage func(format string, args ...any) error
	// Reported is the error that ends a command whose failures have been printed.
	Reported error
	// AddRootDir adds the flag of the root directory, which CheckRootDir completes.
	AddRootDir   func(*pflag.FlagSet, *string)
	CheckRootDir func(string) (string, error)
}

// Explanation is one volume as printed. Its keys are those of run-node's /explain, and more.
type Explanation struct {
	nodeserver.Volume
	// KnownBy is "podvol run-node", or "records" where none runs: then it is not known what is
	// wanted and what is under way.
	KnownBy    string `json:"knownBy"`
	unanswered error  // why it is not run-node
	// Mount is the mount at the path; nil: there is none in this process's mount table.
	Mount *Mount `json:"mount,omitempty"`
	// Record says what is on record.
	Record string `json:"record"`
	// AlsoUsedBy are other volumes that show the same data.
	AlsoUsedBy []string `json:"alsoUsedBy,omitempty"`
	// KeptBecause says why a volume that no manifest has stays all the same; empty: it does not.
	KeptBecause string `json:"keptBecause,omitempty"`
	// Refused is the newer version of the pod's manifest, if run-node refuses it.
	Refused *nodeserver.RefusedManifest `json:"refused,omitempty"`
	// Driver is the volume's CSI driver, if run-node knows it, with the calls for this volume alone.
	Driver *nodeserver.Driver `json:"driver,omitempty"`
}

// Mount is a mount, without secrets.
type Mount struct {
	Source       string   `json:"source"`
	FSType       string   `json:"fsType"`
	Options      []string `json:"options"`
	SuperOptions []string `json:"superOptions"`
}

// Command returns podvol explain.
func Command(s Config) *cobra.Command {
	var rootDir, output string
	c := &cobra.Command{
		Use:        "explain POD[/VOLUME]",
		Short:      "Say all that is known of the volumes of a pod",
		SuggestFor: []string{"describe"}, // as kubectl has it
		Long: "Says of a pod's volumes what is wanted and what is, since when, what is under way and\n" +
			"for how long, what it waits for, the last error and what to do about it, and which\n" +
			"other pods use the same data. POD is NAME, NAMESPACE/NAME or a UID.\n" +
			"It asks the podvol run-node that keeps the root directory, which takes root. Without\n" +
			"one it reads the records and the mount table. It takes no lock, and never touches a\n" +
			"volume, so it answers also while a server does not.\n\n" +
			"Exit code: 0, 1 when there is no such pod or volume, the newer version of its manifest\n" +
			"is refused, or something cannot be read, 2 when several pods are meant.",
		Example: "  podvol explain shop/web-0\n  podvol explain web-0/data -o yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || strings.Trim(args[0], "/") == "" {
				return s.Usage("name one pod, or one of its volumes, as POD or POD/VOLUME; podvol status shows them")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			rootDir, err := s.CheckRootDir(rootDir)
			if err != nil {
				return err
			}
			return s.explain(c.Context(), rootDir, strings.Trim(args[0], "/"), output)
		},
	}
	s.AddRootDir(c.Flags(), &rootDir)
	choice.AddOutput(c, &output, "text", "json", "yaml")
	c.ValidArgsFunction = completion.PodOrVolume
	return c
}

func (s Config) explain(ctx context.Context, rootDir, word, output string) error {
	k, unreadable := look(ctx, rootDir, table.Kernel(), s.Err)
	if _, fatal := errors.AsType[*volumemanager.RootError](unreadable); fatal {
		return unreadable
	}
	chosen, err := choose(k.volumes, word)
	if several, ok := errors.AsType[*ambiguousError](err); ok {
		return s.Usage("%w", several)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", rootDir, orRefused(k.refused, word, err)), unreadable)
	}
	slices.SortStableFunc(chosen, func(a, b nodeserver.Volume) int { return strings.Compare(a.Volume, b.Volume) })
	all := make([]Explanation, len(chosen))
	for i, v := range chosen {
		all[i] = k.explain(v)
	}
	err = errors.Join(show(s.Out, all, k.events, output, time.Now()), unreadable)
	if err == nil && all[0].Refused != nil {
		return s.Reported
	}
	return err
}

func show(out io.Writer, all []Explanation, events []nodeevents.Event, output string, now time.Time) error {
	if output == "text" {
		return fields.Print(out, append(textOf(all, now), fields.Events(events, fields.Subject{Kind: "Pod", Namespace: all[0].Namespace, Name: all[0].Pod, UID: types.UID(all[0].PodUID)}, now)))
	}
	return choice.Print(out, output, all)
}

// knowledge is what can be found out about a root directory.
type knowledge struct {
	rootDir    string
	unanswered error // of [nodeserver.VolumesOr]
	volumes    []nodeserver.Volume
	refused    []nodeserver.Volume // manifests
	manifests  []nodeserver.RefusedManifest
	recorded   []volumemanager.VolumeStatus
	drivers    []nodeserver.Driver
	events     []nodeevents.Event
	mounts     map[string]mount.Entry // by target
}

// look finds out what it can. An error is about records that cannot be read.
func look(ctx context.Context, rootDir string, mounts mount.Table, says io.Writer) (k knowledge, unreadable error) {
	k = knowledge{rootDir: rootDir, mounts: make(map[string]mount.Entry)}
	var err error
	k.recorded, unreadable = volumemanager.Inspect(rootDir, mounts)
	if k.volumes, k.unanswered, err = nodeserver.VolumesOr(ctx, rootDir, k.recorded, says); err != nil {
		return k, errors.Join(unreadable, err)
	}
	k.volumes, k.refused = apart(k.volumes)
	if k.unanswered == nil {
		k.drivers, _ = nodeserver.Drivers(ctx, rootDir) // a node may have none
		k.events, _ = nodeserver.Events(ctx, rootDir)   // nothing else is missed without
		if len(k.refused) > 0 {
			k.manifests, err = nodeserver.RefusedManifests(ctx, rootDir)
			unreadable = errors.Join(unreadable, err)
		}
	}
	entries, err := mounts.All()
	for _, e := range entries { // the last one is on top
		k.mounts[e.Target] = e
	}
	return k, errors.Join(unreadable, err)
}

func (k knowledge) explain(v nodeserver.Volume) Explanation {
	e := Explanation{Volume: v, KnownBy: nodeserver.ByNode, unanswered: k.unanswered, Record: k.recordOf(v), AlsoUsedBy: alsoUsing(k.volumes, v), Mount: k.mountAt(v.Path)}
	if k.unanswered != nil {
		e.KnownBy = nodeserver.ByRecords
	}
	for _, m := range k.manifests {
		if slices.Contains(m.Pods, types.UID(v.PodUID)) || v.Kept && m.Names("Pod", v.PodName()) {
			m.Pods = nil
			e.Refused = &m
		}
	}
	if v.Kept {
		e.KeptBecause = keptBecause(k.manifests)
	}
	driver, handle, _ := strings.Cut(v.Source, ":")
	for _, d := range k.drivers {
		if v.Plugin == "kubernetes.io/csi" && d.Driver == driver {
			d.Calls = slices.DeleteFunc(slices.Clone(d.Calls), func(c nodeserver.Call) bool { return c.Volume != handle })
			e.Driver = &d
		}
	}
	return e
}

// recordOf says what the records have of a volume.
func (k knowledge) recordOf(v nodeserver.Volume) string {
	i := slices.IndexFunc(k.recorded, func(s volumemanager.VolumeStatus) bool {
		return string(s.PodUID) == v.PodUID && s.Volume == v.Volume
	})
	if i < 0 {
		return "none yet"
	}
	where := filepath.Join(volumemanager.StateDir(k.rootDir), "records")
	switch s := k.recorded[i]; {
	case s.Found && errors.Is(s.Err, volumemanager.ErrNoRecord):
		return "none: it is known by its directory alone"
	case s.Found:
		return "rebuilt from its directory, in " + where
	case s.State == volumemanager.StatePending:
		return "in " + where + ", of a mount whose outcome is not recorded"
	case s.Since.IsZero():
		return "in " + where
	default:
		return fmt.Sprintf("in %s, set up at %s", where, s.Since.UTC().Format(time.RFC3339))
	}
}

// mountAt is what is mounted at a path. It looks at the mount table alone, for what is mounted may
// not answer.
func (k knowledge) mountAt(path string) *Mount {
	e, there := k.mounts[path]
	if real, err := filepath.EvalSymlinks(k.rootDir); !there && err == nil {
		if below, ok := strings.CutPrefix(path, k.rootDir+"/"); ok {
			e, there = k.mounts[filepath.Join(real, below)]
		}
	}
	if !there || path == "" {
		return nil
	}
	return &Mount{Source: secretopt.Source(e.Source), FSType: e.FSType, Options: secretopt.Options(e.Options), SuperOptions: secretopt.Options(e.SuperOptions)}
}
