package iscsi_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// session is with a portal of a target by an interface.
type session struct{ iqn, face, portal string }

// targets are the targets of a test, and the sessions of its nodes with them. Each disk is a
// directory, whose path is in the target's name.
type targets struct {
	mu       sync.Mutex
	sessions map[session]map[int]bool // the LUNs that are there
	logins   []*openiscsi.CHAP
	refuse   error
	opened   func()                   // is called once a login has opened its session
	closing  func()                   // is called while a disk is given back
	looked   func()                   // is called once a disk is looked for
	used     string                   // another path to the disk, which is in use
	id       string                   // instead of a disk's own
	paths    bool                     // each portal shows the disk as a device of its own
	mounted  func(device string) bool // and so in use
	size     int64
}

func newTargets() *targets {
	return &targets{sessions: map[session]map[int]bool{}, size: 1 << 40, mounted: func(string) bool { return false }}
}

// iqnOf is the name of the target whose disks are the directories below dir. A name has no
// slash.
func iqnOf(dir string) string {
	return "iqn.2026-01.com.example:" + strings.NewReplacer("_", "_u", "/", "_s").Replace(dir)
}

func dirOf(iqn string) string {
	_, name, _ := strings.Cut(iqn, ":")
	return strings.NewReplacer("_u", "_", "_s", "/").Replace(name)
}

func (t *targets) device(lun openiscsi.LUN) openiscsi.Device {
	id := t.id
	if id == "" {
		id = fmt.Sprintf("naa.%x", lun.IQN+fmt.Sprint(lun.Number))
	}
	path := dirOf(lun.IQN)
	if t.paths {
		path += "@" + lun.Portals[0].Host
	}
	return openiscsi.Device{Path: path, Disks: []string{"sda"}, ID: id, Size: t.size}
}

// sessionsOf are those by which a LUN can be reached.
func sessionsOf(lun openiscsi.LUN) (all []session) {
	for _, p := range lun.Portals {
		all = append(all, session{lun.IQN, lun.Interface.Name, p.Host})
	}
	return all
}

func (t *targets) Login(ctx context.Context, lun openiscsi.LUN, chap *openiscsi.CHAP) (openiscsi.Device, openiscsi.LUN, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	added := lun
	added.Portals = nil
	if err := ctx.Err(); err != nil {
		return openiscsi.Device{}, added, err
	}
	t.logins = append(t.logins, chap)
	if t.refuse != nil {
		return openiscsi.Device{}, lun, t.refuse
	}
	for n, s := range sessionsOf(lun) {
		if t.sessions[s] == nil {
			t.sessions[s] = map[int]bool{}
		}
		if !t.sessions[s][lun.Number] {
			added.Portals = append(added.Portals, lun.Portals[n])
		}
		t.sessions[s][lun.Number] = true
	}
	if t.opened != nil {
		t.opened()
	}
	if err := ctx.Err(); err != nil {
		return openiscsi.Device{}, added, err
	}
	return t.device(lun), added, nil
}

func (t *targets) Find(_ context.Context, lun openiscsi.LUN) (openiscsi.Device, error) {
	if t.looked != nil {
		t.looked()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sessionsOf(lun) {
		if t.sessions[s][lun.Number] {
			return t.device(lun), nil
		}
	}
	return openiscsi.Device{}, &volume.Failure{Cause: openiscsi.ErrNoDisk, What: "no such disk"}
}

func (t *targets) UsedElsewhere(context.Context, openiscsi.Device, func(string) (string, error)) (path, user string, err error) {
	if t.used != "" {
		user = "somewhere"
	}
	return t.used, user, nil
}

func (t *targets) Rescan(ctx context.Context, lun openiscsi.LUN) (openiscsi.Device, error) {
	return t.Find(ctx, lun)
}

func (t *targets) Logout(ctx context.Context, lun openiscsi.LUN) error {
	if t.closing != nil {
		t.closing()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.mounted(t.device(lun).Path) {
		return &volume.Failure{Cause: volume.ErrInUse, What: "the disk is mounted"}
	}
	for _, s := range sessionsOf(lun) {
		delete(t.sessions[s], lun.Number)
		if len(t.sessions[s]) == 0 {
			delete(t.sessions, s)
		}
	}
	return nil
}

// open are the sessions that there are.
func (t *targets) open() []session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.sessions))
}

// binder mounts disks that are directories.
type binder struct {
	mounter mount.Interface
	fail    error
	nothing bool // FormatAndMount only says so
	begins  func()
	options []string
	resized int // file systems
}

func (b *binder) FormatAndMount(ctx context.Context, r format.Request) (format.Result, error) {
	b.options = r.Options
	if b.begins != nil {
		b.begins()
	}
	if b.fail != nil || b.nothing {
		return format.Result{}, b.fail
	}
	r.Request.FSType, r.Request.Options = "", append([]string{"bind"}, r.Request.Options...)
	return format.Result{}, mount.Mount(ctx, b.mounter, r.Request)
}

func (b *binder) Resize(context.Context, string, string) (bool, error) {
	b.resized++
	return true, nil
}

// hosted is the plugin with a formatter that mounts by its host's mounter.
type hosted struct {
	*iscsi.Plugin
	targets *targets
	binder  *binder
}

func newHosted(t *targets) *hosted {
	b := &binder{}
	return &hosted{iscsi.NewWith(t, b), t, b}
}

func (h *hosted) Init(host volume.VolumeHost) error {
	h.binder.mounter = host.GetMounter()
	h.targets.mounted = func(device string) bool {
		all, err := table.Of(host.GetMounter()).All()
		return err != nil || slices.ContainsFunc(all, func(e mount.Entry) bool { return strings.HasSuffix(device, e.Root) && e.Root != "/" })
	}
	return h.Plugin.Init(host)
}
