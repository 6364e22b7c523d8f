package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/sentences"
	"github.com/podvol/podvol/examples/podvol/internal/tracefile"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/volumemanager"
)

// runNodeOptions are the flags of podvol run-node.
type runNodeOptions struct {
	dir           string
	rootDir       string
	nodeName      string
	fake          bool
	output        string
	metricsAddr   string
	traceFile     string
	logRecords    bool
	unmountOnExit bool
	adopt         bool
	accept        bool // the directory, whatever it had before
	plugins       ownplugins.Options
	volumeDirs    []string
	discover      []string
	disks         []localdiscovery.Class // what discover says
	cleanDisks    string
	cleaner       []volume.VolumePlugin // which does what cleanDisks says
}

func runNodeCommand(s streams) *cobra.Command {
	var o runNodeOptions
	c := &cobra.Command{
		Use:   "run-node -f DIR",
		Short: "Keep the volumes of the pods in a directory of manifests mounted",
		Long: "Watches a directory of manifests, as a kubelet does for its static pods. It mounts\n" +
			"the volumes of new pods, updates ConfigMaps and Secrets, and tears removed pods down.\n" +
			"An unreadable or invalid file keeps its last good version, and stops all tear-downs.\n" +
			"So does a missing, emptied or replaced directory, unless --accept-manifests is given.\n" +
			"A claim that is removed while this runs is deleted once no pod uses it. Its volume\n" +
			"is reclaimed by its policy: Delete deletes the data. See podvol pvc delete.\n" +
			"The root directory is this command's alone: pods in no manifest are torn down.\n" +
			"SIGTERM and SIGINT stop it. Mounts stay, unless --unmount-on-exit is given.\n" +
			"While it runs, podvol csi shows its CSI drivers and their calls, to root.",
		Example: "  podvol run-node -f /etc/podvol/manifests --metrics-addr 9090\n" +
			"  curl http://127.0.0.1:9090/explain",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runNode(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringVarP(&o.dir, "filename", "f", "", "directory of manifests: its .yaml, .yml and .json files, hidden ones left out")
	addNodeName(flags, &o.nodeName, "this node's name; pods of other nodes are left out (default: the host name)")
	flags.BoolVar(&o.fake, "fake", false, "mount nothing: at the end, print the commands that would have run")
	choice.AddOutput(c, &o.output, rows.StreamFormats()...)
	flags.StringVar(&o.metricsAddr, "metrics-addr", "", "serve a page for people at /, and /metrics, /explain, /events, /watch, /drivers and /healthz, at this PORT of the loopback interface, or at HOST:PORT (default: nowhere)")
	flags.StringVar(&o.traceFile, "trace-file", "", "add to `FILE` how long each operation and each step of it took, one line of JSON each; at 64 MiB it becomes FILE.1 (default: nowhere)")
	flags.BoolVar(&o.logRecords, "log-records", false, "write log records to standard error where that is a terminal, too, instead of sentences")
	flags.BoolVar(&o.unmountOnExit, "unmount-on-exit", false, "unmount everything below the root directory when stopped")
	flags.BoolVar(&o.adopt, "adopt", false, "take over volumes below the root directory that podvol has no record of")
	flags.BoolVar(&o.accept, "accept-manifests", false, "obey the directory also where it is empty, or another one than it was at the last start")
	o.plugins.Add(flags, usagef)
	addVolumeDirs(flags, &o.volumeDirs)
	addDiscover(flags, &o.discover)
	addCleanDisks(flags, &o.cleanDisks)
	addRootDir(flags, &o.rootDir)
	return c
}

// check completes the options.
func (o *runNodeOptions) check() error {
	if o.dir == "" {
		return usagef("name a directory of manifests with -f")
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return usagef("-f %s: %w", o.dir, err)
	}
	o.dir = dir
	info, err := os.Stat(dir)
	if err != nil {
		return usagef("-f: %w", err)
	}
	if !info.IsDir() {
		return usagef("-f %s is no directory; podvol mount takes files", dir)
	}
	beside, _ := filepath.Split(o.traceFile) // not Dir, for which link/.. is no step
	if other, err := os.Stat(cmp.Or(beside, ".")); err == nil && o.traceFile != "" && os.SameFile(info, other) {
		return usagef("--trace-file %s is in the directory of manifests, which would be read at each of its lines; name one elsewhere", o.traceFile)
	}
	if o.rootDir, err = checkShownRootDir(o.rootDir, o.fake); err != nil {
		return err
	}
	if o.volumeDirs, err = checkNewVolumeDirs(o.volumeDirs); err != nil {
		return err
	}
	if o.disks, err = parseDiscover(o.discover); err != nil {
		return err
	}
	if o.cleaner, err = cleaning(o.cleanDisks, o.disks); err != nil {
		return err
	}
	o.nodeName, err = nodeNameOr(o.nodeName)
	return err
}

func runNode(ctx context.Context, s streams, o runNodeOptions) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	replacements, err := o.plugins.LastingPlugins(ctx, o.fake, o.logger(s))
	if err != nil {
		return err
	}
	out := rows.NewStream(o.output, s.out, s.err)
	server, err := nodeserver.Listen(ctx, o.metricsAddr, usagef)
	if err != nil {
		return err
	}
	if server != nil {
		defer server.Close()
	}
	where, err := newPlace(o.rootDir, o.fake)
	if err != nil {
		return err
	}
	defer where.close()
	config, err := o.agent(ctx, where, s, out)
	if err != nil {
		return err
	}
	config.Plugins, config.Translator = replacements, o.plugins.Translator()
	if o.traceFile != "" {
		trace, err := tracefile.Open(ctx, o.traceFile, where.rename, func(text string) { s.say("%s", text) })
		if err != nil {
			return usagef("--trace-file: %w", err)
		}
		defer func() {
			if err := trace.Close(); err != nil {
				s.fail(err) // which fails no volume
			}
		}()
		config.Tracer = trace
	}
	last, err := keepNode(ctx, config, server, where)
	left := errors.Is(err, nodeagent.ErrLeftMounted)
	if err != nil && !left {
		return err
	}
	where.printCommands(s.err)
	if !o.fake {
		tellLeft(s.err, o)
		if !o.unmountOnExit {
			sentences.TellUnmounted(s.err, last)
		}
	}
	if left {
		return errReported
	}
	return nil
}

// tellLeft says what the node leaves behind.
func tellLeft(w io.Writer, o runNodeOptions) {
	volumes, _ := volumemanager.Inspect(o.rootDir, table.Kernel()) // of what cannot be read, podvol status tells
	pods := make(map[types.UID]bool)
	mounted := 0
	for _, v := range volumes {
		if v.State == volumemanager.StateMounted {
			mounted++
			pods[v.PodUID] = true
		}
	}
	if mounted == 0 {
		fmt.Fprintln(w, "podvol: stopped; no volume is mounted")
		return
	}
	again := programName(os.Args[0])
	plaintext.Line(w, "podvol: stopped; %s of %s left mounted, for the next start to take over; to unmount: %s", sentences.Number(mounted, "volume"), sentences.Number(len(pods), "pod"),
		shellJoin(append(again, append([]string{"unmount", "--all", "--root-dir", o.rootDir}, o.plugins.DriverArgs()...)...)))
}

// logger writes log records for whoever collects them, and sentences for people at a terminal.
func (o *runNodeOptions) logger(s streams) *slog.Logger {
	if isTerminal(s.err) && !o.logRecords {
		return s.logger()
	}
	return slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// agent returns the configuration of the node's agent.
func (o *runNodeOptions) agent(ctx context.Context, where *place, s streams, out *rows.Stream) (nodeagent.Config, error) {
	log := o.logger(s)
	own, err := o.plugins.ForClaims(ctx, log)
	if err != nil {
		return nodeagent.Config{}, err
	}
	out.Edit = where.editRow
	if o.fake {
		out.Expect(rows.Row{State: string(volumemanager.StateMounted), Fake: true})
	}
	node := where.config(o.nodeName, nil)
	return nodeagent.Config{
		Dir: o.dir, Accept: o.accept, RootDir: node.RootDir, NodeName: o.nodeName, Mounter: node.Mounter, HostFiles: node.HostFiles,
		Adopt: o.adopt, ClaimPlugins: append(own, o.cleaner...), VolumeDirs: o.volumeDirs, Disks: o.disks,
		UnmountOnExit: o.unmountOnExit, UnmountTimeout: kubeletPodWait, Manager: "podvol run-node " + o.dir,
		Events: loggedEvents{log, where.rename}, ClaimEvents: storageEvents{log, where.rename}, Logger: log,
		Notice: s.tell, Status: out.Print,
		Hints: nodeagent.Hints{Accept: "--accept-manifests", Adopt: "--adopt", Restart: "start run-node again", Delete: deleteCommand},
	}, nil
}

// deleteCommand is the command that deletes a claim or a volume.
func deleteCommand(ref volume.ObjectRef) string {
	if ref.Kind == "PersistentVolumeClaim" {
		return "podvol pvc delete " + ref.Namespace + "/" + ref.Name
	}
	return "podvol pv delete " + ref.Name
}

// keepNode runs the agent until ctx ends, and serves what it knows, at an address too if there
// is a server. last are the volumes as the agent knew them in the end.
func keepNode(ctx context.Context, config nodeagent.Config, server *nodehttp.Server, where *place) (last []volumemanager.VolumeStatus, err error) {
	views := &nodeserver.Views{Server: server, Rename: where.rename}
	config = views.Observe(config)
	agent, err := nodeagent.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	stop := views.Serve(ctx, agent, config)
	err = agent.Run(ctx)
	stop()
	last = agent.Explain()
	if closeErr := agent.Close(); closeErr != nil {
		if errors.Is(err, nodeagent.ErrLeftMounted) {
			err = nil // its volumes are printed, and closeErr ends the command
		}
		return last, errors.Join(err, closeErr)
	}
	return last, err
}
