package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	"github.com/container-storage-interface/spec/lib/go/csi"
	gce "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/compute"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/metadata"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/parameters"
)

const (
	imageSuffix  = ".image"
	deviceSuffix = ".device" // a link to the loop device
	gigabyte     = 1 << 30
)

// cloud is the driver's own fake of the cloud, whose disks are real. Its maps have no lock.
type cloud struct {
	*gce.FakeCloudProvider
	dir string
	mu  sync.Mutex
}

func newCloud(dir string) (*cloud, error) {
	fake, err := gce.CreateFakeCloudProvider(metadata.FakeProject, metadata.FakeZone, nil)
	return &cloud{FakeCloudProvider: fake, dir: dir}, errors.Join(err, os.MkdirAll(dir, 0o700))
}

// restore has the cloud know the disks and attachments of an earlier process.
func (c *cloud) restore() error {
	images, err := filepath.Glob(filepath.Join(c.dir, "*"+imageSuffix))
	if err != nil {
		return err
	}
	for _, image := range images {
		info, err := os.Stat(image)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(image), imageSuffix)
		key := meta.ZonalKey(name, metadata.FakeZone)
		size := &csi.CapacityRange{RequiredBytes: info.Size()}
		if err := c.FakeCloudProvider.InsertDisk(context.Background(), metadata.FakeProject, key, parameters.DiskParameters{DiskType: "pd-balanced"}, info.Size(), size, nil, "", "", false, ""); err != nil {
			return err
		}
		if _, err := os.Stat(c.file(key, deviceSuffix)); err == nil {
			if err := c.FakeCloudProvider.AttachDisk(context.Background(), metadata.FakeProject, key, "READ_WRITE", "PERSISTENT", metadata.FakeZone, metadata.FakeName, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cloud) file(key *meta.Key, suffix string) string {
	return filepath.Join(c.dir, key.Name+suffix)
}

func (c *cloud) InsertDisk(ctx context.Context, project string, key *meta.Key, p parameters.DiskParameters, bytes int64, size *csi.CapacityRange, zones []string, snapshot, source string, multiWriter bool, mode string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.FakeCloudProvider.InsertDisk(ctx, project, key, p, bytes, size, zones, snapshot, source, multiWriter, mode); err != nil {
		return err
	}
	file, err := os.OpenFile(c.file(key, imageSuffix), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate((bytes+gigabyte-1)/gigabyte*gigabyte), file.Close())
}

func (c *cloud) GetDisk(ctx context.Context, project string, key *meta.Key) (*gce.CloudDisk, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.FakeCloudProvider.GetDisk(ctx, project, key)
}

func (c *cloud) DeleteDisk(ctx context.Context, project string, key *meta.Key) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.Remove(c.file(key, imageSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return c.FakeCloudProvider.DeleteDisk(ctx, project, key)
}

func (c *cloud) ResizeDisk(ctx context.Context, project string, key *meta.Key, bytes int64) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size, err := c.FakeCloudProvider.ResizeDisk(ctx, project, key, bytes)
	if err == nil {
		err = os.Truncate(c.file(key, imageSuffix), size*gigabyte)
	}
	if err != nil {
		return 0, err
	}
	if device, err := filepath.EvalSymlinks(c.file(key, deviceSuffix)); err == nil {
		return size, losetup(nil, "--set-capacity", device)
	}
	return size, nil
}

func (c *cloud) AttachDisk(ctx context.Context, project string, key *meta.Key, mode, kind, zone, instance string, force bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var device string
	if err := losetup(&device, "--find", "--show", c.file(key, imageSuffix)); err != nil {
		return err
	}
	if err := os.Symlink(device, c.file(key, deviceSuffix)); err != nil {
		return err
	}
	return c.FakeCloudProvider.AttachDisk(ctx, project, key, mode, kind, zone, instance, force)
}

func (c *cloud) DetachDisk(ctx context.Context, project, name, zone, instance string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	link := filepath.Join(c.dir, name+deviceSuffix)
	device, err := filepath.EvalSymlinks(link)
	if err != nil {
		return err
	}
	if err := errors.Join(losetup(nil, "--detach", device), os.Remove(link)); err != nil {
		return err
	}
	return c.FakeCloudProvider.DetachDisk(ctx, project, name, zone, instance)
}

// losetup runs the program of that name, and gives what it prints.
func losetup(printed *string, args ...string) error {
	out, err := exec.Command("losetup", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, out)
	}
	if printed != nil {
		*printed = strings.TrimSpace(string(out))
	}
	return nil
}
