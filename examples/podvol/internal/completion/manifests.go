package completion

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/objects/manifest"
)

// OfManifests completes the flags of a command that takes manifests with what is in those that -f
// names so far: --pod, --container and --volume, as far as the command has them.
func OfManifests(c *cobra.Command) {
	for flag, names := range map[string]func(*v1.Pod) []string{
		"pod": func(pod *v1.Pod) []string { return []string{pod.Namespace + "/" + pod.Name} },
		"container": func(pod *v1.Pod) (names []string) {
			for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
				names = append(names, container.Name)
			}
			return names
		},
		"volume": func(pod *v1.Pod) (names []string) {
			for _, v := range pod.Spec.Volumes {
				names = append(names, v.Name)
			}
			return names
		},
	} {
		if c.Flag(flag) == nil {
			continue
		}
		_ = c.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) { // the flag is there
			var all []string
			for _, pod := range declared(c) {
				if chosen := c.Flag("pod"); flag == "pod" || chosen == nil || !chosen.Changed || chosen.Value.String() == pod.Namespace+"/"+pod.Name {
					all = append(all, names(pod)...)
				}
			}
			return offered(all, nil)
		})
	}
}

// blocks reports whether reading a file may wait for somebody: then the shell would.
func blocks(path string) bool {
	info, err := os.Stat(path)
	return err != nil || !info.Mode().IsRegular() && !info.IsDir()
}

// declared are the pods of the manifests; none where these cannot be read.
func declared(c *cobra.Command) []*v1.Pod {
	if set := load(c); set != nil {
		return set.Pods()
	}
	return nil
}

// load reads the manifests of -f; nil: there are none, or they cannot be read. Standard input is the
// shell's.
func load(c *cobra.Command) *manifest.Set {
	files, err := c.Flags().GetStringArray("filename")
	if dir, once := c.Flags().GetString("filename"); once == nil && dir != "" { // run-node takes one
		files, err = []string{dir}, nil
	}
	if err != nil || len(files) == 0 || slices.ContainsFunc(files, blocks) {
		return nil
	}
	node := ""
	if flag := c.Flag("node"); flag != nil {
		node = flag.Value.String()
	}
	slices.Sort(files) // cobra parses flags twice, and an object must be declared once
	set, err := manifest.Loader{NodeName: node, Stdin: strings.NewReader("")}.Load(slices.Compact(files)...)
	if err != nil {
		return nil
	}
	return set
}
