package ownplugins

import (
	"fmt"
	"io"
	"strings"

	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TellMissing says of which drivers volumes are, where the command line names none: without
// the CSI plugin their records explain nothing. It returns the flags that would name them.
func (o *Options) TellMissing(w io.Writer, volumes []volumemanager.VolumeStatus) (flags []string) {
	if o.hasDrivers() {
		return nil
	}
	told := make(map[string]bool)
	for _, v := range volumes {
		driver, _, _ := strings.Cut(v.Source, ":")
		if v.Plugin != csi.PluginName || driver == "" || told[driver] {
			continue
		}
		told[driver] = true
		fmt.Fprintf(w, "podvol: volume %s of pod %s is of CSI driver %s, and no CSI plugin is registered: give --csi-driver %s=SOCKET or --csi-registry DIR\n", v.Volume, v.Pod, driver, driver)
		flags = append(flags, "--csi-driver", driver+"=SOCKET")
	}
	return flags
}
