package ownplugins

import (
	"fmt"
	"io"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Missing are the drivers that volumes are of, where the command line names none: without the
// CSI plugin their records explain nothing.
type Missing struct {
	// Sentences say so, one for each driver.
	Sentences []string
	// Flags would name them, but for their sockets.
	Flags []string
}

// Missing returns the drivers that the command line lacks for volumes.
func (o *Options) Missing(volumes []volumemanager.VolumeStatus) (m Missing) {
	if o.hasDrivers() {
		return m
	}
	told := make(map[string]bool)
	for _, v := range volumes {
		driver, _, _ := strings.Cut(v.Source, ":")
		if v.Plugin != csi.PluginName || driver == "" || told[driver] {
			continue
		}
		told[driver] = true
		m.Sentences = append(m.Sentences, fmt.Sprintf("volume %s of pod %s is of CSI driver %s, and no CSI plugin is registered: give --csi-driver %s=SOCKET or --csi-registry DIR", v.Volume, v.Pod, driver, driver))
		m.Flags = append(m.Flags, "--csi-driver", driver+"=SOCKET")
	}
	return m
}

// Tell prints the sentences to where errors go.
func (m Missing) Tell(w io.Writer) {
	for _, sentence := range m.Sentences {
		table.Sentence(w, "podvol: %s", sentence)
	}
}
