package kubeletroot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const volumeData = "vol_data.json"

// data is what counts of a vol_data.json.
type data struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
}

// readData reads a vol_data.json. Its errors show nothing of the file.
func readData(dir *os.File) (d data, err error) {
	text, err := readFile(dir, volumeData)
	if err != nil {
		return data{}, err
	}
	if len(text) == 0 {
		return data{}, errors.New("it is empty, as after a power cut")
	}
	if json.Unmarshal(text, &d) != nil {
		return data{}, errors.New("it is no JSON object of strings")
	}
	if d.Driver == "" || d.Handle == "" {
		return data{}, errors.New("it names no driver or no volume")
	}
	return d, nil
}

// csiVolume looks at pods/<uid>/volumes/kubernetes.io~csi/<volume>.
func (x *examination) csiVolume(in *os.File, uid types.UID, name string) {
	dir, err := open(in, name)
	if errors.Is(err, errElsewhere) {
		return
	}
	if err != nil {
		x.failed(err)
		return
	}
	defer dir.Close()
	d, failure := readData(dir)
	target := filepath.Join(dir.Name(), "mount")
	there := statAt(dir, "mount", new(unix.Stat_t)) == nil || x.isMounted(target)
	switch {
	case failure != nil && !there && errors.Is(failure, os.ErrNotExist):
		return // the kubelet is about to remove it, or to begin
	case failure != nil:
		x.unclear = true
		x.find(Finding{Kind: NoVolumeData, PodUID: uid, Volume: name, Path: filepath.Join(dir.Name(), volumeData), Err: lost(failure),
			Advice: "The kubelet cannot unmount the volume after its next restart. Delete the pod before that, or umount " + target + " by hand when its containers have ended."})
	case !there:
		x.find(Finding{Kind: LeftVolumeData, PodUID: uid, Volume: name, Path: filepath.Join(dir.Name(), volumeData), Err: errors.New("the volume's directory " + target + " is gone"),
			Advice: "The kubelet does not remove the pod's directory because of it. When the pod is gone, remove the file and its directory."})
		x.uses[deviceDir(d)] = true
	default:
		x.uses[deviceDir(d)] = true
	}
}

func lost(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("there is none")
	}
	return err
}

// deviceDir is the name of a device's directory below plugins/kubernetes.io/csi.
func deviceDir(d data) string {
	sum := sha256.Sum256([]byte(d.Handle))
	return filepath.Join(d.Driver, hex.EncodeToString(sum[:]))
}

// csiDevices looks at plugins/kubernetes.io/csi, after the pods' volumes.
func (x *examination) csiDevices() {
	plugins := x.top("plugins")
	if plugins == nil {
		return
	}
	defer plugins.Close()
	x.failed(x.tree.below(plugins, "kubernetes.io/csi", func(in *os.File, driver entry) {
		if driver.name == "volumeDevices" {
			x.failed(x.tree.below(in, driver.name, x.blockVolume))
			return
		}
		x.failed(x.tree.below(in, driver.name, func(in *os.File, e entry) {
			if driver.name != "pv" { // as before 1.24
				x.csiDevice(in, driver.name, e)
			}
		}))
	}))
}

// csiDevice looks at <driver>/<sha256 of the handle>.
func (x *examination) csiDevice(in *os.File, driver string, e entry) {
	dir, err := open(in, e.name)
	if err != nil {
		if !errors.Is(err, errElsewhere) {
			x.failed(err)
		}
		return
	}
	defer dir.Close()
	mounted := filepath.Join(dir.Name(), "globalmount")
	d, failure := readData(dir)
	key := filepath.Join(driver, e.name)
	if failure == nil && deviceDir(d) != key {
		failure = errors.New("it is of another volume")
	}
	if failure != nil && (x.isMounted(mounted) || !errors.Is(failure, os.ErrNotExist)) {
		x.find(Finding{Kind: NoVolumeData, Volume: driver, Path: filepath.Join(dir.Name(), volumeData), Err: lost(failure),
			Advice: "The kubelet cannot unmount the device's mount after its next restart. When no pod uses the volume: umount " + mounted + "."})
	}
	if x.isMounted(mounted) && !x.uses[key] && !x.unclear {
		x.find(Finding{Kind: LeakedMount, Volume: driver, Path: mounted, Err: errors.New("a device is mounted here for all pods, and no pod has the volume"),
			Advice: "The kubelet forgets such a mount when it was stopped between its last two steps. When the node does not use the volume: umount " + mounted + "."})
	}
}

// blockVolume looks at volumeDevices/<volume>/data/vol_data.json.
func (x *examination) blockVolume(in *os.File, e entry) {
	if e.name == "staging" || e.name == "publish" {
		return
	}
	dir, err := open(in, filepath.Join(e.name, "data"))
	if err != nil {
		if !errors.Is(err, errElsewhere) {
			x.failed(err)
		}
		return
	}
	defer dir.Close()
	if _, failure := readData(dir); failure != nil {
		x.find(Finding{Kind: NoVolumeData, Volume: e.name, Path: filepath.Join(dir.Name(), volumeData), Err: fmt.Errorf("a block volume's: %w", lost(failure)),
			Advice: "The kubelet cannot unmap the device after its next restart. Delete the pod that uses it before that."})
	}
}
