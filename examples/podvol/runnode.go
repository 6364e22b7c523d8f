package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
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
	unmountOnExit bool
	adopt         bool
	accept        bool // the directory, whatever it had before
	nfsPolicy     string
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
		Long: "Watches a directory of manifests, as a kubelet does for its static pods, and\n" +
			"keeps the volumes of their pods mounted until it is stopped: a new file's pods\n" +
			"are mounted, a changed ConfigMap or Secret reaches its volumes at once, the pods\n" +
			"of a removed file are torn down. It prints a row whenever a volume changes.\n\n" +
			"Each file stands for itself. One that cannot be read, is invalid, or has an\n" +
			"object that another file has too, keeps its last good version, and standard error\n" +
			"says so once; while there is such a file, nothing of the directory is torn down or\n" +
			"deleted. Nor is it while the directory is missing, or has been replaced by one that\n" +
			"lacks something, or is empty at the start though it was not at the last one: its\n" +
			"disk may not be mounted. --accept-manifests says that it is meant. Pods of other\n" +
			"nodes are left out. A pod that has lost a volume, or has another source for one, is\n" +
			"torn down and set up again.\n\n" +
			"Claims are bound, volumes made for those whose class does so, and both kept below\n" +
			"the root directory. A claim that is removed from the manifests while this runs is\n" +
			"deleted once no pod has it mounted, and its volume reclaimed as its policy says:\n" +
			"Delete deletes the data. What went while it was stopped, or since another directory\n" +
			"has taken the name, stays and is named: podvol pvc delete deletes it. Those of a\n" +
			"StatefulSet with whenDeleted: Delete are no exception.\n" +
			"While a record of claims is damaged, pods without claims are served, and those with\n" +
			"claims keep what they have mounted; standard error says what to do.\n\n" +
			"All of the root directory is this command's: pods that podvol mount left there and\n" +
			"that are in no manifest are torn down, once every manifest has been read.\n" +
			"Make sure that nothing uses the volumes of pods that you remove. Volumes that\n" +
			"podvol has no record of are left alone, and a pod's volume fails where there is\n" +
			"one of them, unless --adopt says that no other agent uses this root directory:\n" +
			"then they are taken over as they are. --adopt is refused while a kubelet runs.\n\n" +
			"SIGTERM and SIGINT stop it; mounts stay, and the next run takes them over, unless\n" +
			"--unmount-on-exit is given.",
		Example: "  podvol run-node -f /etc/podvol/manifests --metrics-addr 9090\n" +
			"  curl http://127.0.0.1:9090/explain",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runNode(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringVarP(&o.dir, "filename", "f", "", "directory of manifests: its .yaml, .yml and .json files, hidden ones left out")
	addNodeName(flags, &o.nodeName, "this node's name; pods of other nodes are left out (default: the host name)")
	flags.BoolVar(&o.fake, "fake", false, "mount nothing: at the end, print the commands that would have run")
	flags.StringVarP(&o.output, "output", "o", "table", "how to print: table, or json for one object a line")
	flags.StringVar(&o.metricsAddr, "metrics-addr", "", "serve /metrics, /explain and /healthz at this PORT of the loopback interface, or at HOST:PORT (default: nowhere)")
	flags.BoolVar(&o.unmountOnExit, "unmount-on-exit", false, "unmount everything below the root directory when stopped")
	flags.BoolVar(&o.adopt, "adopt", false, "take over volumes below the root directory that podvol has no record of")
	flags.BoolVar(&o.accept, "accept-manifests", false, "obey the directory also where it is empty, or another one than it was at the last start")
	addNFSPolicy(flags, &o.nfsPolicy)
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
	if info, err := os.Stat(dir); err != nil {
		return usagef("-f: %w", err)
	} else if !info.IsDir() {
		return usagef("-f %s is no directory; podvol mount takes files", dir)
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
	replacements, err := nfsUnderPolicy(o.nfsPolicy)
	if err != nil {
		return err
	}
	out, err := newRowStream(o.output, s.out, s.err)
	if err != nil {
		return err
	}
	server, err := listen(ctx, o.metricsAddr)
	if err != nil {
		return err
	}
	defer server.close()
	where, err := newPlace(o.rootDir, o.fake)
	if err != nil {
		return err
	}
	defer where.close()
	out.rename = where.rename
	store := objects.NewStore()
	config := where.config(o.nodeName, store)
	config.containers, config.adopt, config.plugins = noContainers{}, o.adopt, replacements
	config.log = slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	config.events = loggedEvents{config.log, where.rename}
	node, err := startNode(ctx, config)
	if err != nil {
		return err
	}
	failed, err := o.keep(ctx, s, keeping{where: where, node: node, store: store, out: out, server: server, config: config})
	if err := errors.Join(err, node.stop(), out.flush(nil)); err != nil {
		return err
	}
	where.printCommands(s.err)
	if failed {
		return errReported
	}
	return nil
}

// keeping is what a run of the command keeps volumes with.
type keeping struct {
	where  *place
	node   *node
	store  *objects.Store
	out    *rowStream
	server *nodeServer
	config nodeConfig
}

// keep keeps volumes until ctx ends. It reports whether something is still
// mounted that should not be.
func (o *runNodeOptions) keep(ctx context.Context, s streams, k keeping) (failed bool, err error) {
	own, err := nfsUnderPolicy(o.nfsPolicy) // instances of its own
	if err != nil {
		return false, err
	}
	storage, err := openStorage(ctx, clusterConfig{
		rootDir: k.where.rootDir, node: k.config, manager: "podvol run-node " + o.dir, store: k.store, events: storageEvents{k.config.log, k.where.rename},
		volumeDirs: o.volumeDirs, plugins: append(own, o.cleaner...), mounted: mountedOn(k.node.Manager),
		mountedFor: mountedFor(k.node.Manager), log: k.config.log,
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, storage.stop()) }()
	// The watch comes before the first look, so that no change goes unseen.
	watch, err := watchDir(o.dir)
	if err != nil {
		return false, err
	}
	defer watch.close()
	say := func(text string) { fmt.Fprintln(s.err, "podvol:", text) }
	if err := sayUnrecorded(k.where.rootDir, say); err != nil {
		return false, err
	}
	if storage.without != nil {
		say(storage.without.Error())
		o.disks = nil // of which claims would be told
	}
	stopDiscovery, err := discoverDisks(ctx, o.disks, storage, k.config, say)
	if err != nil {
		return false, err
	}
	defer stopDiscovery()
	run := &nodeRun{
		node: k.node, out: k.out, watch: watch, say: say, unmountOnExit: o.unmountOnExit,
		dir:  newManifestDir(o.dir, o.nodeName, openKnown(filepath.Join(volumemanager.StateDir(k.where.rootDir), knownFile)), k.node.CheckPod, say),
		keep: newKeeper(k.node.Manager, storage, k.out, say),
	}
	run.dir.accept = o.accept
	run.dir.mounted = k.node.Explain
	metrics := newNodeMetrics(k.node.Manager, k.node.Explain())
	k.server.serve(metrics, run.explain)
	defer k.node.Subscribe(func(v volumemanager.VolumeStatus) { metrics.observe(v); k.out.take(v) })()
	if k.server.url != "" {
		say("metrics are at " + k.server.url + "/metrics, the state of volumes at " + k.server.url + "/explain")
	}
	err = run.untilStopped(ctx)
	return run.failed, err
}

// sayUnrecorded says how many volumes there are that podvol has no record of.
func sayUnrecorded(rootDir string, say func(string)) error {
	table, err := mount.KernelTable()
	if err != nil {
		return err
	}
	rows, _ := volumemanager.Inspect(rootDir, table) // what cannot be read, the manager has said
	rows = slices.DeleteFunc(rows, func(v volumemanager.VolumeStatus) bool { return !errors.Is(v.Err, volumemanager.ErrNoRecord) })
	if len(rows) > 0 {
		say(fmt.Sprintf("%d volumes below %s are left alone, since podvol has no record of them, such as %s; if no other agent uses this root directory, --adopt takes them over",
			len(rows), rootDir, rows[0].Path))
	}
	return nil
}

// nodeRun is one run of the command.
type nodeRun struct {
	node  *node
	out   *rowStream
	watch *dirWatch
	dir   *manifestDir
	keep  *keeper
	say   func(string)

	unmountOnExit bool
	due           *time.Timer // of the next look, at what was missing or refused
	want          *contents   // as seen last
	volumes       int         // of its pods
	unpruned      bool        // since then
	told          string      // about the manifests, last
	complete      bool        // the node has been told that it knows all pods
	failed        bool        // something is still mounted that should not be
}

func (r *nodeRun) untilStopped(ctx context.Context) error {
	r.due = time.NewTimer(afterRefusal)
	defer r.due.Stop()
	r.due.Stop()
	// The first look comes before anything that has changed meanwhile, such as
	// claims and disks: until then it is not known which pods are wanted.
	err := r.look(ctx)
	for err == nil || ctx.Err() != nil {
		select {
		case <-ctx.Done():
			return r.end(ctx)
		case <-r.watch.changed:
			err = r.look(ctx)
		case <-r.due.C:
			err = r.look(ctx)
		case uid := <-r.keep.gone:
			r.keep.renew(uid)
			err = r.look(ctx)
		case uid := <-r.keep.left:
			r.keep.forget(ctx, uid)
		case <-r.keep.storage.changed:
			if err = r.keep.placeWaiting(ctx, r.keep.storage.news.take()); err == nil {
				err = r.settle(ctx)
			}
		case err = <-r.keep.storage.ended:
			if err == nil {
				err = errors.New("claims and volumes are not kept any more")
			}
		case <-r.out.news:
			err = r.out.flush(func(v volumemanager.VolumeStatus) { r.keep.see(ctx, v) })
		}
	}
	return err
}

// afterRefusal is how long what could not be applied waits for another try,
// unless a file changes before: it is for full disks.
const afterRefusal = 10 * time.Second

// look makes what the directory says now the wish.
func (r *nodeRun) look(ctx context.Context) error {
	again := r.dir.scan()
	r.want, r.volumes = r.dir.wanted(), 0
	for _, pod := range r.want.pods {
		r.volumes += len(pod.Spec.Volumes)
	}
	refused, err := r.keep.apply(ctx, r.want)
	if err != nil {
		return err
	}
	if refused && (again == 0 || again > afterRefusal) {
		again = afterRefusal
	}
	if again > 0 {
		r.due.Reset(again)
	}
	r.unpruned = true
	return r.settle(ctx)
}

// settle lets go of what nobody wants, once all is known that is wanted, and
// tells how things are.
func (r *nodeRun) settle(ctx context.Context) error {
	if !r.complete && r.dir.complete() {
		r.complete = true
		r.keep.complete(ctx)
	}
	if r.complete && r.unpruned {
		held, refused, err := r.keep.prune(ctx, r.want, r.dir.taken())
		if err != nil {
			return err
		}
		if r.unpruned = held || refused; refused {
			r.due.Reset(afterRefusal)
		}
	}
	r.tell()
	return nil
}

// tell says how things are, where that is new.
func (r *nodeRun) tell() {
	told := fmt.Sprintf("pods: %d, volumes: %d, files refused: %d", len(r.want.pods), r.volumes, r.dir.faults())
	if !r.complete && !r.dir.allRead() {
		told += "; pods in no manifest are kept until every manifest has been read"
	}
	if r.want.held != "" {
		told += "; " + r.want.held
	}
	if r.dir.question != "" {
		told += "; " + r.dir.question
	}
	if told != r.told {
		r.told = told
		r.say(told)
	}
}

// end is the command's end; the second signal ends it at once.
func (r *nodeRun) end(ctx context.Context) error {
	if !r.unmountOnExit {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kubeletPodWait)
	defer cancel()
	var mu sync.Mutex
	tearDownPods(ctx, r.node, r.node.Explain(), func(v volumemanager.VolumeStatus) {
		if v.Err != nil {
			mu.Lock()
			defer mu.Unlock()
			r.failed = true
			r.out.put(v)
		}
	})
	return nil
}

// explain is what /explain shows.
func (r *nodeRun) explain() []volumemanager.VolumeStatus {
	rows := append(r.node.Explain(), r.keep.waiting.rows()...)
	for i := range rows {
		rows[i].Path = r.out.rename(rows[i].Path)
	}
	return rows
}
