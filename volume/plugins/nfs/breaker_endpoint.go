package nfs

import (
	"slices"
	"strings"
)

// endpoint is one service of a server: mounts from the same endpoint go the same
// way.
type endpoint struct {
	server string // as in export.normal
	// options are the mount options that lead elsewhere than to the usual
	// service, sorted and separated by commas.
	options string
}

// String is the server, and the options after it.
func (e endpoint) String() string {
	if e.options == "" {
		return e.server
	}
	return e.server + " (" + e.options + ")"
}

func endpointOf(e export, options []string) endpoint {
	var ways []string
	for _, given := range options {
		for o := range strings.SplitSeq(given, ",") {
			if way := wayOf(strings.TrimSpace(o)); way != "" {
				ways = append(ways, way)
			}
		}
	}
	slices.Sort(ways)
	return endpoint{e.normal().server, strings.Join(slices.Compact(ways), ",")}
}

// wayOf returns what an option says of the way to the server (nfs(5)), or
// nothing. NFSv3 asks more services of the server than the others.
func wayOf(option string) string {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case "port", "addr", "mountaddr", "mounthost", "mountport", "mountproto", "udp", "rdma":
		return option
	case "proto":
		if value != "tcp" {
			return option
		}
	case "vers", "nfsvers":
		if value == "3" {
			return "vers=3"
		}
	case "v3":
		return "vers=3"
	}
	return ""
}
