package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/podrun/runroot"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// fsckOptions are the flags of podvol fsck.
type fsckOptions struct {
	rootDir, output string
	repair, adopt   bool
	again
}

func fsckCommand(s streams) *cobra.Command {
	var o fsckOptions
	c := &cobra.Command{
		Use:   "fsck [--repair] [--adopt]",
		Short: "Look for leftovers below the root directory, and repair them",
		Long: "Compares records, directories, the mount table and running mount helpers, and\n" +
			"prints what is wrong and what would be done about it. With --repair it is done:\n" +
			"set-ups that were never finished and records whose mounts are gone are torn\n" +
			"down, mounts on top of each other are unmounted but for the lowest, and mount\n" +
			"helpers of an agent that is dead are ended. Nothing is removed recursively, but\n" +
			"the root directories of podvol run whose process is gone, after what is mounted\n" +
			"there is unmounted: only those that it has marked as its own, as this user, where\n" +
			"nobody else can write. Only for these an ordinary user may use --repair.\n\n" +
			"What podvol has no record of is left alone, unless --adopt says that nobody else\n" +
			"uses this root directory: then a record is made of it, so that podvol knows it\n" +
			"from now on. --adopt is refused while a kubelet runs.\n\n" +
			"While records are damaged, nothing is deleted, emptied or detached that they may\n" +
			"have named: fsck prints where the damaged file is kept. Find out what it was\n" +
			"about, unmount or adopt that, and remove the file or move it elsewhere.\n\n" +
			"Exit code: 0 when nothing is wrong, or everything was repaired, else 1.",
		Example: "  podvol fsck\n" +
			"  podvol fsck --repair\n" +
			"  podvol fsck --root-dir /var/lib/kubelet --adopt    # only show what would be adopted",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return fsck(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.BoolVar(&o.repair, "repair", false, "repair what can be")
	flags.BoolVar(&o.adopt, "adopt", false, "make records of volumes that have none")
	flags.StringVarP(&o.output, "output", "o", "text", "how to print: text, json or yaml")
	addRootDir(flags, &o.rootDir)
	o.again.add(flags)
	return c
}

func fsck(ctx context.Context, s streams, o fsckOptions) error {
	rootDir, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	list, err := newProblemList(o.output, s.out)
	if err != nil {
		return err
	}
	if _, err := os.Stat(rootDir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.err, "Nothing to check: %s does not exist.\n", rootDir)
		return list.close()
	}
	o.rootDir = rootDir
	warnHidden(s.err, rootDir)
	config := volumemanager.Config{
		RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Plugins: plugins.All(), Adopt: o.adopt,
		Logger: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if !o.repair {
		err := errors.Join(checkRoot(ctx, config, list), checkRuns(rootDir, list), checkStored(rootDir))
		return o.conclude(s, list, errors.Join(err, list.close()))
	}
	defer removeEmptyBase(rootDir)
	if proceed, err := mayRepair(ctx, s, o, config); !proceed {
		return err
	}
	err = errors.Join(repairRoot(ctx, config, list), repairRuns(ctx, rootDir, config.Logger, list), checkStored(rootDir))
	return o.conclude(s, list, errors.Join(err, list.close()))
}

// conclude says what the list comes to.
func (o fsckOptions) conclude(s streams, list *problemList, err error) error {
	switch {
	case err != nil:
		return err
	case list.count == 0:
		fmt.Fprintf(s.err, "Nothing is wrong below %s.\n", o.rootDir)
		return nil
	case list.open == 0:
		return nil
	case !o.repair && list.repairable > 0:
		fmt.Fprintf(s.err, "To repair: %s\n", shellJoin(append(programName(os.Args[0]), o.repairArgs()...)))
	}
	return errReported
}

func (o fsckOptions) repairArgs() []string {
	args := []string{"fsck", "--repair", "--root-dir", o.rootDir}
	if o.adopt {
		args = append(args, "--adopt")
	}
	return args
}

func checkRoot(ctx context.Context, config volumemanager.Config, list *problemList) error {
	problems, err := volumemanager.Check(ctx, config)
	for _, p := range problems {
		list.add(p, false, nil)
	}
	return err
}

// mayRepair makes sure that the repair may unmount. An ordinary user has
// nothing mounted here that a repair could see but what runs have left, and
// gets a user namespace for that: then mayRepair returns false and how that
// ended.
func mayRepair(ctx context.Context, s streams, o fsckOptions, config volumemanager.Config) (bool, error) {
	if !o.inside && mayMount() != nil {
		problems, err := volumemanager.Check(ctx, config)
		if err != nil {
			return false, err
		}
		if len(problems) > 0 || o.adopt {
			return false, mayMount()
		}
		dead, done, err := runsOf(o.rootDir).Dead()
		done()
		if err != nil || len(dead) == 0 {
			return true, err
		}
	}
	return becomeMounter(ctx, s, o.again, func() []string { return append(o.repairArgs(), "-o", o.output) })
}

// repairRoot leaves a root alone at which nothing is wrong.
func repairRoot(ctx context.Context, config volumemanager.Config, list *problemList) error {
	if problems, err := volumemanager.Check(ctx, config); err != nil || len(problems) == 0 {
		return err
	}
	return volumemanager.Repair(ctx, config, func(p volumemanager.Problem, err error) { list.add(p, p.Repair != "", err) })
}

// problemRow is one problem as printed; its keys are part of the command's
// contract.
type problemRow struct {
	Problem  string `json:"problem"`
	Pod      string `json:"pod,omitempty"`
	Volume   string `json:"volume,omitempty"`
	Path     string `json:"path,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Detail   string `json:"detail"`
	Repair   string `json:"repair,omitempty"`
	Advice   string `json:"advice,omitempty"`
	Repaired bool   `json:"repaired"`
	Error    string `json:"error,omitempty"`
}

// problemList prints problems, text as they come, JSON and YAML at the end.
type problemList struct {
	out    io.Writer
	format string
	rows   []problemRow
	// count is all problems, open those that are not repaired, repairable those
	// of them that can be.
	count, open, repairable int
}

func newProblemList(format string, out io.Writer) (*problemList, error) {
	switch format {
	case "text", "json", "yaml":
		return &problemList{out: out, format: format, rows: []problemRow{}}, nil
	}
	return nil, usagef("-o %q must be text, json or yaml", format)
}

func (l *problemList) add(p volumemanager.Problem, tried bool, err error) {
	row := problemRow{
		Problem: string(p.Kind), Volume: p.Volume, Path: p.Path, PID: p.PID, Detail: p.Err.Error(),
		Repair: p.Repair, Advice: p.Advice, Repaired: tried && err == nil,
	}
	switch {
	case p.Pod.Name != "":
		row.Pod = p.Pod.String()
	case p.PodUID != "":
		row.Pod = string(p.PodUID)
	}
	if err != nil {
		row.Error = err.Error()
	}
	l.count++
	if !row.Repaired {
		l.open++
		if p.Repair != "" {
			l.repairable++
		}
	}
	l.rows = append(l.rows, row)
	if l.format == "text" {
		l.print(row)
	}
}

func (l *problemList) print(r problemRow) {
	fmt.Fprintf(l.out, "%s: %s\n", r.Problem, plaintext.Cell(r.Path))
	if r.Pod != "" {
		fmt.Fprintf(l.out, "  pod:    %s\n", plaintext.Cell(r.Pod))
	}
	fmt.Fprintf(l.out, "  wrong:  %s\n", r.Detail)
	switch {
	case r.Repaired:
		fmt.Fprintf(l.out, "  done:   %s\n", r.Repair)
	case r.Error != "":
		fmt.Fprintf(l.out, "  failed: %s: %s\n", r.Repair, r.Error)
	case r.Repair != "":
		fmt.Fprintf(l.out, "  repair: %s\n", r.Repair)
	}
	if r.Advice != "" {
		fmt.Fprintf(l.out, "  advice: %s\n", r.Advice)
	}
}

func (l *problemList) close() error {
	if l.format == "text" {
		return nil
	}
	text, err := json.MarshalIndent(l.rows, "", "  ")
	if err == nil && l.format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "%s\n", text)
	return err
}

// problemDeadRun is what a podvol run left that was killed.
const problemDeadRun volumemanager.ProblemKind = "run of a dead process"

// checkRuns lists the runs whose process is gone.
func checkRuns(rootDir string, list *problemList) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	for _, r := range dead {
		list.add(problemOf(r), false, nil)
	}
	return err
}

// repairRuns tears down what such runs have left, and removes their root
// directories. One that cannot be removed holds up no other.
func repairRuns(ctx context.Context, rootDir string, log *slog.Logger, list *problemList) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	if err != nil {
		return err
	}
	for _, r := range dead {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := problemOf(r)
		list.add(p, true, clearUp(ctx, r, log))
	}
	runsOf(rootDir).RemoveEmpty() // a run may have failed before it had a root directory
	return nil
}

func problemOf(r *runroot.Root) volumemanager.Problem {
	p := volumemanager.Problem{
		Kind: problemDeadRun, Path: r.Path(),
		Err:    errors.New("a podvol run has ended and left its root directory: it was killed, or could not take its volumes down"),
		Repair: "tear down what is left of its volumes and remove the directory",
	}
	mounts := table.Kernel()
	volumes, _ := volumemanager.Inspect(r.Path(), mounts) // what cannot be read, the repair will say
	if len(volumes) > 0 {
		p.Pod, p.PodUID = volumes[0].Pod, volumes[0].PodUID
		p.Err = fmt.Errorf("%w, which has %d volumes", p.Err, len(volumes))
	}
	return p
}

// clearUp takes the root over as the next owner would, tears everything down
// and removes it.
func clearUp(ctx context.Context, r *runroot.Root, log *slog.Logger) error {
	err := tearDownAll(ctx, r.Path(), log)
	if err != nil {
		return err
	}
	return r.Remove(ctx)
}

func tearDownAll(ctx context.Context, rootDir string, log *slog.Logger) error {
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Logger: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletPodWait)
	defer cancel()
	var errs []error
	done := make(map[types.UID]bool)
	for _, v := range node.Explain() {
		if !done[v.PodUID] {
			done[v.PodUID] = true
			errs = append(errs, node.TearDownPod(ctx, v.PodUID))
		}
	}
	// What its records have lost may be here still.
	return errors.Join(append(errs, node.Damaged(), node.Stop())...)
}
