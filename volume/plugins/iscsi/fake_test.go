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
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// targets are the targets of a test, and the sessions of its nodes with them. Each disk is a
// directory, whose path is in the target's name.
type targets struct {
	mu       sync.Mutex
	sessions map[string]map[int]bool // by target, the LUNs that are there
	logins   []*openiscsi.CHAP
	refuse   error
	opened   func() // is called once a login has opened its session
	used     string // another path to the disk, which is in use
	id       string // instead of a disk's own
	size     int64
}

func newTargets() *targets { return &targets{sessions: map[string]map[int]bool{}, size: 1 << 40} }

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
	return openiscsi.Device{Path: dirOf(lun.IQN), Disks: []string{"sda"}, ID: id, Size: t.size}
}

func (t *targets) Login(ctx context.Context, lun openiscsi.LUN, chap *openiscsi.CHAP) (openiscsi.Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return openiscsi.Device{}, err
	}
	t.logins = append(t.logins, chap)
	if t.refuse != nil {
		return openiscsi.Device{}, t.refuse
	}
	if t.sessions[lun.IQN] == nil {
		t.sessions[lun.IQN] = map[int]bool{}
	}
	t.sessions[lun.IQN][lun.Number] = true
	if t.opened != nil {
		t.opened()
	}
	if err := ctx.Err(); err != nil {
		return openiscsi.Device{}, err
	}
	return t.device(lun), nil
}

func (t *targets) Find(_ context.Context, lun openiscsi.LUN) (openiscsi.Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sessions[lun.IQN][lun.Number] {
		return openiscsi.Device{}, &volume.Failure{Cause: openiscsi.ErrNoDisk, What: "no such disk"}
	}
	return t.device(lun), nil
}

func (t *targets) UsedElsewhere(context.Context, openiscsi.Device) (string, error) {
	return t.used, nil
}

func (t *targets) Rescan(ctx context.Context, lun openiscsi.LUN) (openiscsi.Device, error) {
	return t.Find(ctx, lun)
}

func (t *targets) Logout(ctx context.Context, lun openiscsi.LUN) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	delete(t.sessions[lun.IQN], lun.Number)
	if len(t.sessions[lun.IQN]) == 0 {
		delete(t.sessions, lun.IQN)
	}
	return nil
}

// open are the targets with which there are sessions.
func (t *targets) open() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.sessions))
}

// binder mounts disks that are directories.
type binder struct {
	mounter mount.Interface
	fail    error
	nothing bool // FormatAndMount only says so
}

func (b *binder) FormatAndMount(ctx context.Context, r format.Request) (format.Result, error) {
	if b.fail != nil || b.nothing {
		return format.Result{}, b.fail
	}
	r.Request.FSType, r.Request.Options = "", append([]string{"bind"}, r.Request.Options...)
	return format.Result{}, mount.Mount(ctx, b.mounter, r.Request)
}

func (b *binder) Resize(context.Context, string, string) (bool, error) { return true, nil }

// hosted is the plugin with a formatter that mounts by its host's mounter.
type hosted struct {
	*iscsi.Plugin
	binder *binder
}

func newHosted(t *targets) *hosted {
	b := &binder{}
	return &hosted{iscsi.NewWith(t, b), b}
}

func (h *hosted) Init(host volume.VolumeHost) error {
	h.binder.mounter = host.GetMounter()
	return h.Plugin.Init(host)
}
