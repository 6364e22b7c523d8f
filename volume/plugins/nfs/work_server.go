package nfs

import (
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/below"
)

// seenServer is what the kernel shows of a server while the agent itself has an
// export of it mounted: a server goes by names, addresses and aliases, of which
// a volume and a pod may have different ones.
type seenServer struct {
	addresses []string // as addr= of nfs(5) has them
	devices   []uint64 // which mounts of one file system of a server share
}

// seenOf returns what the agent's own mounts of a server show, which is nothing
// before there are any.
func (p *plugin) seenOf(server string, all []mount.Entry) (seen seenServer) {
	work, own := p.GetWorkDir(), export{server: server, path: "/"}
	for _, e := range all {
		found, ok := parseTableSource(e.Source)
		if !ok || !isNFS(e) || !below.Strictly(work, e.Target) || !own.overlaps(found) {
			continue
		}
		seen.devices = append(seen.devices, e.Device)
		if address, ok := e.Option("addr"); ok {
			seen.addresses = append(seen.addresses, address)
		}
	}
	return seen
}

func (s seenServer) has(e mount.Entry) bool {
	address, ok := e.Option("addr")
	return slices.Contains(s.devices, e.Device) || ok && slices.Contains(s.addresses, address)
}
