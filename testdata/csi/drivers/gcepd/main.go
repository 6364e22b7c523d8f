// Command gcepd is the CSI driver of Google's persistent disks with a cloud on this
// machine: a disk is a sparse file in a directory, and attaching it is a loop device. The
// driver itself, its Identity, Controller and Node services, is Google's. Disks and
// attachments outlive the process.
//
//	gcepd -socket /run/gcepd.sock -dir /var/lib/gcepd
//
// It needs root.
package main

import (
	"flag"
	"log"
	"path/filepath"
	"time"

	compute "google.golang.org/api/compute/v1"
	"k8s.io/mount-utils"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/deviceutils"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/metadata"
	driver "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-pd-csi-driver"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/linkcache"
	mountmanager "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/mount-manager"
)

func main() {
	socket := flag.String("socket", "", "the driver's `PATH`")
	dir := flag.String("dir", "", "the `DIRECTORY` of the disks")
	flag.Parse()
	if *socket == "" || *dir == "" || flag.NArg() > 0 {
		log.Fatal("name -socket and -dir")
	}
	if err := serve(*socket, *dir); err != nil {
		log.Fatal(err)
	}
}

func serve(socket, dir string) error {
	c, err := newCloud(dir)
	if err != nil {
		return err
	}
	c.InsertInstance(&compute.Instance{Name: metadata.FakeName}, metadata.FakeZone, metadata.FakeName)
	if err := c.restore(); err != nil {
		return err
	}
	mounter, err := mountmanager.NewSafeMounter(4, time.Minute)
	if err != nil {
		return err
	}
	d := driver.GetGCEDriver()
	controller := driver.NewControllerServer(d, c, time.Millisecond, time.Second, nil, false, false, driver.MultiZoneVolumeHandleConfig{}, driver.ListVolumesConfig{},
		driver.ProvisionableDisksConfig{}, false, &driver.GCEControllerServerArgs{})
	node := driver.NewNodeServer(d, mounter, devices{deviceutils.NewFakeDeviceUtils(false), dir}, metadata.NewFakeService(), mountmanager.NewStatter(mounter),
		&driver.NodeServerArgs{DeviceCache: linkcache.NewTestDeviceCache(time.Minute, linkcache.NewTestNodeWithVolumes(nil))})
	if err := d.SetupGCEDriver("pd.csi.storage.gke.io", "1.28.1", nil, nil, driver.NewIdentityServer(d), controller, node); err != nil {
		return err
	}
	d.Run("unix:"+socket, 1000, false, nil)
	return nil
}

// devices finds the loop devices of attached disks.
type devices struct {
	deviceutils.DeviceUtils
	dir string
}

func (d devices) GetDiskByIdPaths(name, _ string) []string {
	return []string{filepath.Join(d.dir, name+deviceSuffix)}
}

func (d devices) VerifyDevicePath(paths []string, _ string) (string, error) {
	return filepath.EvalSymlinks(paths[0])
}

func (d devices) IsDeviceFilesystemInUse(*mount.SafeFormatAndMount, string, string) (bool, error) {
	return false, nil
}
