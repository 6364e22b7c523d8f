// Package krbd maps images of Ceph clusters to disks of this machine, by the kernel's client in
// /sys/bus/rbd. It runs no program but modprobe.
//
// Each mapping has a token that the caller chooses and notes before: the name under which the
// kernel is lent the key. The kernel shows it in the mapping's config_info, so that one's own
// mapping is told from others of the same image, also after a crash. The key is in a keyring that
// one thread has for one call.
package krbd

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/util/program"
	"github.com/podvol/podvol/volume"
)

// Client maps by the kernel's client. Its zero value is this machine's; it is safe for concurrent
// use, for one token at a time.
type Client struct {
	// Bus is /sys/bus/rbd, and Dev /dev, of a test.
	Bus, Dev string
	// Write replaces the call that has the kernel do something.
	Write func(file, text string) error

	calls blockingcall.Group[string] // by token
}

// Request asks for a mapping.
type Request struct {
	// Monitors are addresses with ports, separated by commas.
	Monitors string
	// User is without "client.", Key in base64.
	User, Key   string
	Pool, Image string
	// Token is [IsToken].
	Token string
	// ReadOnly maps an image that others may have as well. Otherwise this machine has the
	// image's exclusive lock from the mapping to its end.
	ReadOnly bool
}

// Device is a mapped image.
type Device struct {
	// ID is the kernel's number, and Path the disk.
	ID, Path string
	// Number is the disk's device number.
	Number uint64
	// Size is the image's, in bytes, as the kernel knows it by now.
	Size int64
	// ReadOnly: it was mapped so.
	ReadOnly bool
}

// The causes of failed mappings.
const (
	ErrNoClient    volume.Cause = "this kernel has no rbd client"
	ErrNoImage     volume.Cause = "the cluster has no such image"
	ErrDenied      volume.Cause = "the cluster, or this machine, denies access"
	ErrUnreachable volume.Cause = "the cluster does not answer"
	ErrFeatures    volume.Cause = "the image has features that this kernel lacks"
	ErrNoLock      volume.Cause = "the image cannot be locked"
	ErrRefused     volume.Cause = "the kernel does not map the image"
)

const prefix = "podvol-"

var token = lazyregexp.New(`^[0-9a-f]{32}$`)

// IsToken reports whether a text can be a token.
func IsToken(text string) bool { return token().MatchString(text) }

func (c *Client) bus() string { return cmp.Or(c.Bus, "/sys/bus/rbd") }

// Map maps an image, unless its token is mapped. A failure is a *[volume.Failure], marked by
// [volume.NothingDone] where nothing is mapped and nothing may still be. The call may take as
// long as the cluster likes: when ctx ends before, the error is uncertain, and the next call for
// the token waits for this one.
func (c *Client) Map(ctx context.Context, r Request) (Device, error) {
	err := c.calls.Do(ctx, r.Token, func() error {
		_, mapped, err := c.Find(r.Token)
		if err != nil || mapped {
			return volume.NothingDone(err)
		}
		return c.add(ctx, r)
	})
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started && !abandoned.Earlier {
		err = volume.NothingDone(err)
	}
	if err != nil {
		return Device{}, fmt.Errorf("map image %s/%s: %w", r.Pool, r.Image, err)
	}
	d, mapped, err := c.Find(r.Token)
	if err == nil && !mapped {
		err = fmt.Errorf("image %s/%s was mapped, and is gone: %w", r.Pool, r.Image, fs.ErrNotExist)
	}
	return d, err
}

func (c *Client) add(ctx context.Context, r Request) error {
	if err := c.load(ctx); err != nil {
		return volume.NothingDone(err)
	}
	options := "name=" + r.User + ",key=" + prefix + r.Token
	if r.ReadOnly {
		options += ",ro"
	} else {
		options += ",exclusive"
	}
	line := strings.Join([]string{r.Monitors, options, r.Pool, r.Image, "-"}, " ")
	err := withKey(r.Key, prefix+r.Token, c.Write != nil, func() error { return c.write("add", line) })
	if err != nil {
		return volume.NothingDone(c.explain(r, err))
	}
	return nil
}

// write has the kernel do what a file of the bus stands for. Newer kernels have both names.
func (c *Client) write(file, text string) error {
	path := filepath.Join(c.bus(), file+"_single_major")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = filepath.Join(c.bus(), file)
	}
	if c.Write != nil {
		return c.Write(path, text)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = eintr.Do(func() error {
		_, err := unix.Write(int(f.Fd()), []byte(text))
		return err
	})
	return errors.Join(err, f.Close())
}

// withKey calls f in a thread whose own keyring has the key, which ends with the thread.
func withKey(key, name string, fake bool, f func() error) error {
	if fake {
		return f()
	}
	raw, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		return errors.New("the key is not in base64")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_, err := unix.AddKey("ceph", name, raw, unix.KEY_SPEC_THREAD_KEYRING)
		if err != nil {
			err = fmt.Errorf("lend the kernel a key: %w", err)
		} else {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// load has the kernel load its client.
func (c *Client) load(ctx context.Context) error {
	_, err := os.Stat(c.bus())
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	missing := &volume.Failure{Cause: ErrNoClient, Subject: "rbd", What: c.bus() + " is missing", Next: "load the module (modprobe rbd), or run a kernel that has it"}
	modprobe, err := program.Find(nil, "modprobe")
	if err != nil {
		return missing
	}
	out, err := exec.CommandContext(ctx, modprobe, "rbd", "single_major=Y").CombinedOutput()
	if err != nil {
		missing.What += fmt.Sprintf(", and modprobe rbd fails: %.200s", strings.TrimSpace(string(out)))
		return missing
	}
	return nil
}

// Find returns the mapping with a token.
func (c *Client) Find(token string) (d Device, mapped bool, err error) {
	entries, err := os.ReadDir(filepath.Join(c.bus(), "devices"))
	if errors.Is(err, fs.ErrNotExist) {
		return d, false, nil
	}
	if err != nil {
		return d, false, err
	}
	for _, e := range entries {
		options, err := c.options(e.Name())
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // it goes
		}
		if err != nil {
			return d, false, err
		}
		if !slices.Contains(options, "key="+prefix+token) {
			continue
		}
		d, err := c.read(e.Name())
		d.ReadOnly = slices.Contains(options, "ro")
		return d, err == nil, err
	}
	return d, false, nil
}

// options are those of a mapping.
func (c *Client) options(id string) ([]string, error) {
	text, err := c.attribute(id, "config_info")
	fields := strings.Fields(text)
	if err != nil || len(fields) < 2 {
		return nil, err
	}
	return strings.Split(fields[1], ","), nil
}

func (c *Client) attribute(id, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.bus(), "devices", id, name))
	return strings.TrimSpace(string(text)), err
}

func (c *Client) read(id string) (Device, error) {
	d := Device{ID: id, Path: filepath.Join(cmp.Or(c.Dev, "/dev"), "rbd"+id)}
	var numbers [3]int64
	for i, name := range []string{"size", "major", "minor"} {
		text, err := c.attribute(id, name)
		if err == nil {
			numbers[i], err = strconv.ParseInt(text, 10, 64)
		}
		if err != nil {
			return d, fmt.Errorf("mapping %s: %w", id, err)
		}
	}
	d.Size, d.Number = numbers[0], unix.Mkdev(uint32(numbers[1]), uint32(numbers[2]))
	return d, nil
}

// Unmap ends the mapping of a token, after what was written to it has reached the cluster. It
// succeeds if there is none. A disk that something has open stays: the error matches
// [volume.ErrInUse]. When ctx ends before the kernel is done, the error is uncertain.
func (c *Client) Unmap(ctx context.Context, token string) error {
	return c.calls.Do(ctx, token, func() error {
		d, mapped, err := c.Find(token)
		if err != nil || !mapped {
			return err
		}
		err = c.write("remove", d.ID)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY):
			return &volume.Failure{Cause: volume.ErrInUse, Subject: d.Path, What: "something has " + d.Path + " open", Next: "end it; fuser -v " + d.Path + " names it"}
		}
		return err
	})
}

// explain says why the kernel has not mapped an image.
func (c *Client) explain(r Request, err error) error {
	image := r.Pool + "/" + r.Image
	f := &volume.Failure{Subject: image, What: err.Error()}
	if at, ok := errors.AsType[*fs.PathError](err); ok && at.Op == "open" {
		f.Cause, f.Next = ErrDenied, "let this agent, as root of the machine, write to "+at.Path
		return f
	}
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.ENOENT:
		f.Cause, f.Next = ErrNoImage, "check pool and image: rbd info "+image
	case unix.EACCES, unix.EPERM, unix.ENOKEY, unix.EKEYREJECTED:
		f.Cause, f.Next = ErrDenied, fmt.Sprintf("check the key, and what it allows: ceph auth get client.%s; and that this agent may administer the machine", r.User)
	case unix.ETIMEDOUT, unix.EIO, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ECONNREFUSED:
		f.Cause, f.Next = ErrUnreachable, "check that this node reaches the monitors at "+r.Monitors
	case unix.ENXIO:
		lacking := c.lacking()
		f.Cause = ErrFeatures
		f.What = fmt.Sprintf("%s has a feature that this kernel lacks, of %s", image, strings.Join(lacking, ", "))
		f.Next = fmt.Sprintf("rbd info %s shows them; rbd feature disable %s %s", image, image, lacking[0])
	case unix.EINVAL:
		f.Cause, f.Next = ErrNoLock, fmt.Sprintf("an image that is written to needs the feature exclusive-lock: rbd feature enable %s exclusive-lock; or use it read-only", image)
	case unix.EROFS, unix.EBUSY:
		f.Cause, f.What, f.Next = volume.ErrInUse, image+" is locked by another client of the cluster", "rbd lock list "+image+" names it; end the pods there"
	default:
		f.Cause, f.Next = ErrRefused, "the kernel's log says more: dmesg | grep rbd"
	}
	return f
}

// features are those of images, by their bits.
func features() []string {
	return []string{"layering", "striping", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling", "data-pool", "operations", "migrating", "non-primary", "dirty-cache"}
}

// lacking are the features that this kernel does not have, those first that can be disabled.
func (c *Client) lacking() []string {
	text, _ := os.ReadFile(filepath.Join(c.bus(), "supported_features"))
	mask, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 64)
	if err != nil {
		mask = 1 // layering, as old kernels without the file
	}
	var lacking []string
	for bit, name := range features() {
		if mask&(1<<bit) == 0 {
			lacking = append(lacking, name)
		}
	}
	slices.SortStableFunc(lacking, func(a, b string) int { return cmp.Compare(fixed(a), fixed(b)) })
	if len(lacking) == 0 {
		lacking = []string{"one that is newer than this program"}
	}
	return lacking
}

// fixed is 1 for a feature that an image has for ever.
func fixed(feature string) int {
	if slices.Contains([]string{"exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling"}, feature) {
		return 0
	}
	return 1
}
