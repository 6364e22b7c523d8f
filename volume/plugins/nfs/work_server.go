package nfs

import (
	"fmt"
	"slices"

	"github.com/podvol/podvol/mount"
)

// seenServer is what the kernel shows of a server while the agent itself has an
// export of it mounted: a server goes by names, addresses and aliases, of which
// a volume and a pod may have different ones.
type seenServer struct {
	addresses []string // of addr= of nfs(5), in their one spelling
	devices   []uint64 // which mounts of one file system of a server share
}

// seenOf returns what the agent's own mounts of a server show, which is nothing
// before there are any.
func (p *plugin) seenOf(server string, all []mount.Entry) (seen seenServer, err error) {
	work, err := placeOf(p.GetWorkDir())
	if err != nil {
		return seen, fmt.Errorf("which mounts are the agent's own cannot be told: %w", err)
	}
	own := export{server: server, path: "/"}
	for _, e := range all {
		found, ok := parseTableSource(e.Source)
		if !ok || !isNFS(e) || !work.holds(e.Target) || !own.overlaps(found) {
			continue
		}
		seen.devices = append(seen.devices, e.Device)
		if address, ok := e.Option("addr"); ok {
			seen.addresses = append(seen.addresses, normalServer(address))
		}
	}
	return seen, nil
}

func (s seenServer) has(e mount.Entry) bool {
	address, ok := e.Option("addr")
	return slices.Contains(s.devices, e.Device) || ok && slices.Contains(s.addresses, normalServer(address))
}
