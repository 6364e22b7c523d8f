package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/volume/atomicdir"
	"github.com/podvol/podvol/volume/objects/localtoken"
	"github.com/podvol/podvol/volume/podfiles"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// renderOptions are the flags of podvol render.
type renderOptions struct {
	files    []string
	rootDir  string
	nodeName string
	pod      string
	volumes  []string
	output   string
	to       string
}

func renderCommand(s streams) *cobra.Command {
	var o renderOptions
	c := &cobra.Command{
		Use:   "render -f FILE|DIR|- [--pod NAMESPACE/NAME] [--volume NAME]… [-o tar|json|dir --to DIR]",
		Short: "Print the files of a pod's volumes, without a mount",
		Long: "Prints the files of the configMap, secret, downwardAPI and projected volumes of a\n" +
			"pod, with their modes and owners, as a node would show them. Nothing is mounted, and\n" +
			"no root is needed.\n\n" +
			"  tar   an archive on standard output: VOLUME/PATH\n" +
			"  json  an object on standard output; contents are in base64\n" +
			"  dir   files below --to: DIR/VOLUME/PATH. Another run changes all files of a volume\n" +
			"        at once, and removes the files that are gone from it. The directory of a\n" +
			"        volume that is gone from the pod stays. Without root all files are yours, and\n" +
			"        only you can look into the directories. Nothing is synced to the disk: run it\n" +
			"        again after a power cut.\n\n" +
			"Service account tokens are of the key that podvol mount uses, below --root-dir.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return renderPod(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory of manifests, or - for standard input (repeatable)")
	addNodeName(flags, &o.nodeName, "this node's name (default: the node that the manifests name, else the host name)")
	flags.StringVar(&o.pod, "pod", "", "the pod, as NAMESPACE/NAME (default: the only one)")
	flags.StringArrayVar(&o.volumes, "volume", nil, "a volume of the pod (repeatable; default: all that have files)")
	choice.AddOutput(c, &o.output, "tar", "json", "dir")
	flags.StringVar(&o.to, "to", "", "the directory of -o dir; it must exist")
	flags.StringVar(&o.rootDir, "root-dir", defaultRootDir(), "directory with the key of tokens")
	completion.OfManifests(c)
	return c
}

func (o renderOptions) check(out io.Writer) error {
	switch {
	case o.output == "tar" && isTerminal(out):
		return usagef("an archive is nothing for a terminal; redirect it, or choose -o json or -o dir")
	case (o.output == "dir") != (o.to != ""):
		return usagef("-o dir and --to DIR go together")
	}
	return nil
}

func renderPod(ctx context.Context, s streams, o renderOptions) error {
	if err := o.check(s.out); err != nil {
		return err
	}
	set, pods, err := loadPods(ctx, s, o.files, o.nodeName, o.pod)
	if err != nil {
		return err
	}
	pod, err := choosePod(pods)
	if err != nil {
		return err
	}
	names, err := volumesToRender(pod, o.volumes)
	if err != nil {
		return err
	}
	from := podfiles.Sources{
		Objects: set, Tokens: tokensOf{o.rootDir}, Allocatable: standalone.Machine{Objects: set, NodeName: types.NodeName(set.NodeName)},
	}
	// Only root can give files away, so the group that may read a file would be another.
	options := podfiles.Options{NoOwners: o.output == "dir" && os.Geteuid() != 0}
	rendered := make(map[string]*podfiles.Set)
	var faults []error
	for _, name := range names {
		set, err := podfiles.Render(ctx, pod, name, from, options)
		rendered[name], faults = set, append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	switch o.output {
	case "tar":
		return together(rendered).WriteTar(plaintext.AsGiven(s.out))
	case "json":
		return json.NewEncoder(plaintext.AsGiven(s.out)).Encode(shown(rendered))
	}
	return publishAll(ctx, o.to, rendered)
}

// tokensOf issues tokens of the key below a root directory, which it makes for the first.
type tokensOf struct{ rootDir string }

// RequestToken implements volume.TokenRequester.
func (t tokensOf) RequestToken(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	base, err := checkRootDir(t.rootDir)
	if err != nil {
		return nil, err
	}
	state := volumemanager.StateDir(base)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	return localtoken.New(filepath.Join(state, "token.key")).RequestToken(ctx, namespace, account, request)
}

// volumesToRender are those that are asked for, else all that have files.
func volumesToRender(pod *v1.Pod, asked []string) (names []string, err error) {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; podfiles.HasFiles(v) {
			names = append(names, v.Name)
		}
	}
	for _, name := range asked {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name }) {
			return nil, fmt.Errorf("pod %s/%s has no volume %q%s", pod.Namespace, pod.Name, name, choice.Meant(name, names))
		}
	}
	if len(asked) > 0 {
		return asked, nil
	}
	if len(names) == 0 {
		return nil, usagef("pod %s/%s has no configMap, secret, downwardAPI or projected volume", pod.Namespace, pod.Name)
	}
	return names, nil
}

// together are the files of several volumes, each below the volume's name.
func together(rendered map[string]*podfiles.Set) *podfiles.Set {
	all := &podfiles.Set{}
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		all.Put(name, rendered[name])
	}
	return all
}

// volumeJSON and fileJSON are what -o json prints; its keys are part of the contract.
type volumeJSON struct {
	Files        []fileJSON `json:"files"`
	RefreshAfter *time.Time `json:"refreshAfter,omitempty"`
	DependsOn    []string   `json:"dependsOn,omitempty"`
}

type fileJSON struct {
	Path string `json:"path"`
	Mode string `json:"mode"` // octal
	UID  *int64 `json:"uid,omitempty"`
	GID  *int64 `json:"gid,omitempty"`
	Data []byte `json:"data"` // base64
}

func shown(rendered map[string]*podfiles.Set) map[string]volumeJSON {
	all := make(map[string]volumeJSON)
	for name, s := range rendered {
		v := volumeJSON{Files: []fileJSON{}}
		for _, p := range s.Paths() {
			f := s.Files[p]
			v.Files = append(v.Files, fileJSON{Path: p, Mode: fmt.Sprintf("%04o", f.Mode), UID: f.UID, GID: f.GID, Data: append([]byte{}, f.Data...)})
		}
		if !s.RefreshAfter.IsZero() {
			v.RefreshAfter = new(s.RefreshAfter.UTC())
		}
		for _, ref := range s.DependsOn {
			v.DependsOn = append(v.DependsOn, ref.String())
		}
		all[name] = v
	}
	return all
}

// publishAll writes each volume into a directory of its name.
func publishAll(ctx context.Context, dir string, rendered map[string]*podfiles.Set) error {
	var publisher atomicdir.Publisher
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		target := filepath.Join(dir, name)
		if err := os.Mkdir(target, volumeDirMode()); err != nil && !errors.Is(err, fs.ErrExist) {
			return usagef("--to: %w", err)
		}
		if _, err := publisher.Publish(ctx, target, rendered[name].Files); err != nil {
			return err
		}
	}
	return nil
}

// volumeDirMode is the mode of a new directory for a volume. Containers of a root's agent may
// be of any user. Those of an ordinary user are of that user, to whom alone the secrets are shown.
func volumeDirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o755
	}
	return 0o700
}
