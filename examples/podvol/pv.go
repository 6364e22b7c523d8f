package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// pvOptions are the flags of podvol pv.
type pvOptions struct{ rootDir, output string }

func pvCommand(s streams) *cobra.Command {
	var o pvOptions
	c := &cobra.Command{
		Use:   "pv [NAME…]",
		Short: "Print the PersistentVolumes below the root directory, or change them",
		Long: "Prints the PersistentVolumes that are recorded below the root directory, as\n" +
			"kubectl get does; why one could not be reclaimed goes to standard error. It takes\n" +
			"no lock, and works while podvol run-node runs.\n\n" +
			"Exit code: 0, or 1 when one that is named does not exist or a record is damaged.",
		Example: "  podvol pv\n" +
			"  podvol pv nfs211 -o yaml\n" +
			"  podvol pv describe nfs211\n" +
			"  podvol pv release nfs211",
		RunE:              func(c *cobra.Command, names []string) error { return orCommand(c, names, printPVs(s, o, names)) },
		ValidArgsFunction: completion.Volumes,
	}
	flags := c.Flags()
	choice.AddOutput(c, &o.output, kubectlget.Formats()...)
	addRootDir(flags, &o.rootDir)
	c.AddCommand(pvDescribeCommand(s), pvDeleteCommand(s), pvReleaseCommand(s))
	return c
}

func printPVs(s streams, o pvOptions, names []string) error {
	rootDir, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	found := readStored(rootDir)
	shown, errs := found.volumes, []error{found.damaged}
	if len(names) > 0 {
		var missing []error
		if shown, missing, err = found.chooseVolumes(names); err != nil {
			return err
		}
		errs = append(errs, missing...)
	}
	single := len(names) == 1
	if !single || len(shown) > 0 {
		err := kubectlget.Print(s.out, o.output, kubectlget.VolumeKind, shown, single, func() kubectlget.Table {
			return kubectlget.VolumeColumns(shown, o.output == "wide", time.Now())
		})
		errs = append(errs, err)
	}
	if len(names) == 0 && len(shown) == 0 && found.damaged == nil && !slices.Contains([]string{"json", "yaml"}, o.output) {
		fmt.Fprintln(s.err, "No resources found")
	}
	for _, pv := range shown {
		if why := whyUnreclaimed(pv); why != "" {
			printNote(s.err, pv.Name, why)
		}
	}
	return errors.Join(errs...)
}

// whyUnreclaimed says why a volume could not be reclaimed, or what its lost claim means; empty: it
// is in order.
func whyUnreclaimed(pv *v1.PersistentVolume) string {
	if isUnreclaimed(pv) || pv.Annotations[persisted.LostClaimAnnotation] != "" {
		return pv.Status.Message
	}
	return ""
}

// chooseVolumes returns the volumes that are named, each once, as NAME or as -o name
// prints it, and an error for each that there is not.
func (s stored) chooseVolumes(words []string) (chosen []*v1.PersistentVolume, missing []error, err error) {
	for _, word := range words {
		name := withoutKind(word, kubectlget.VolumeKind)
		if name == "" || strings.Contains(name, "/") {
			return nil, nil, usagef("%q must be NAME or %s/NAME", word, kubectlget.VolumeKind.Singular)
		}
		pv := s.volume(name)
		switch {
		case pv == nil:
			missing = append(missing, kubectlget.VolumeNotFound(name, s.volumes))
		case !slices.Contains(chosen, pv):
			chosen = append(chosen, pv)
		}
	}
	return chosen, missing, nil
}

// withoutKind is the name of an object that may have its kind before it, as kubectl
// prints and takes it.
func withoutKind(word string, kind kubectlget.Kind) string {
	for _, prefix := range []string{kind.Singular, kind.Plural} {
		if name, ok := strings.CutPrefix(word, prefix+"/"); ok {
			return name
		}
	}
	return word
}
