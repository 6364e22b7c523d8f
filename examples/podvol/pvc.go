package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// pvcOptions are the flags of podvol pvc.
type pvcOptions struct {
	rootDir, output, namespace string
	all                        bool
}

func pvcCommand(s streams) *cobra.Command {
	var o pvcOptions
	c := &cobra.Command{
		Use:   "pvc [NAME…] [-n NAMESPACE | -A]",
		Short: "Print the claims below the root directory, or delete them",
		Long: "Prints the PersistentVolumeClaims that are recorded below the root directory, as\n" +
			"kubectl get does; why one has no volume, or is still there although it was\n" +
			"deleted, goes to standard error. It takes no lock, and works while podvol\n" +
			"run-node runs. -o wide also tells which pods have them mounted on this machine.\n\n" +
			"Exit code: 0, or 1 when one that is named does not exist or a record is damaged.",
		Example: "  podvol pvc -A\n" +
			"  podvol pvc nfs-211 -n ops-test -o wide\n" +
			"  podvol pvc describe ops-test/nfs-211\n" +
			"  podvol pvc delete ops-test/nfs-211",
		RunE:              func(c *cobra.Command, names []string) error { return orCommand(c, names, printPVCs(s, o, names)) },
		ValidArgsFunction: completion.Claims,
	}
	flags := c.Flags()
	choice.AddOutput(c, &o.output, kubectlget.Formats()...)
	flags.StringVarP(&o.namespace, "namespace", "n", v1.NamespaceDefault, "the claims of this namespace")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "the claims of all namespaces")
	addRootDir(flags, &o.rootDir)
	c.AddCommand(pvcDescribeCommand(s), pvcDeleteCommand(s))
	return c
}

func printPVCs(s streams, o pvcOptions, names []string) error {
	if o.all && len(names) > 0 {
		return usagef("a claim cannot be retrieved by name across all namespaces; name it as NAMESPACE/NAME, or its namespace with -n")
	}
	rootDir, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	found := readStored(rootDir)
	shown, missing, err := o.choose(found, names)
	if err != nil {
		return err
	}
	users, err := claimUsersBelow(rootDir)
	errs := append(missing, found.damaged, err)
	single := len(names) == 1
	if !single || len(shown) > 0 {
		err := kubectlget.Print(s.out, o.output, kubectlget.ClaimKind, shown, single, func() kubectlget.Table {
			return kubectlget.ClaimColumns(shown, o.all, o.output == "wide", users, time.Now())
		})
		errs = append(errs, err)
	}
	if len(names) == 0 && len(shown) == 0 && found.damaged == nil && !slices.Contains([]string{"json", "yaml"}, o.output) {
		fmt.Fprintln(s.err, o.noneFound(len(found.claims)))
	}
	explainClaims(s.err, found, shown, users)
	return errors.Join(errs...)
}

// choose returns the claims that are meant, and an error for each that there is
// not.
func (o pvcOptions) choose(found stored, names []string) (shown []*v1.PersistentVolumeClaim, missing []error, err error) {
	if len(names) == 0 {
		for _, claim := range found.claims {
			if o.all || claim.Namespace == o.namespace {
				shown = append(shown, claim)
			}
		}
		return shown, nil, nil
	}
	for _, word := range names {
		name, err := claimName(word, o.namespace)
		if err != nil {
			return nil, nil, err
		}
		claim := found.claim(name)
		if claim == nil {
			missing = append(missing, kubectlget.ClaimNotFound(word, name, found.claims))
			continue
		}
		if !slices.Contains(shown, claim) {
			shown = append(shown, claim)
		}
	}
	return shown, missing, nil
}

// claimName reads NAME, in a namespace, or NAMESPACE/NAME, either as -o name prints it
// or without the kind.
func claimName(word, namespace string) (types.NamespacedName, error) {
	rest := withoutKind(word, kubectlget.ClaimKind)
	name := types.NamespacedName{Namespace: namespace, Name: rest}
	if before, after, ok := strings.Cut(rest, "/"); ok {
		name = types.NamespacedName{Namespace: before, Name: after}
	}
	if name.Namespace == "" || name.Name == "" || strings.Contains(name.Name, "/") {
		return name, usagef("%q must be NAME or NAMESPACE/NAME", word)
	}
	return name, nil
}

// noneFound says what kubectl does, and where there are some.
func (o pvcOptions) noneFound(all int) string {
	switch {
	case o.all:
		return "No resources found"
	case all > 0:
		return fmt.Sprintf("No resources found in %s namespace; -A prints the claims of all namespaces.", o.namespace)
	}
	return fmt.Sprintf("No resources found in %s namespace.", o.namespace)
}

// printNote prints what no column has about an object, below the table.
func printNote(w io.Writer, name, text string) {
	_ = table.Paragraph(w, "  ", plaintext.Cell(name)+": "+strings.TrimSpace(text))
}

func nameOfClaim(claim *v1.PersistentVolumeClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}
