package nfs

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are the options of one NFS mount, by the part that carries them out.
type Options struct {
	// Versions are to be tried in this order; Asked is what the options say of
	// them, or empty.
	Versions []Version
	Asked    string
	// Transport is for NFS itself; MountTransport for the MOUNT protocol of
	// NFSv3, with an empty Protocol where not given.
	Transport, MountTransport Transport
	// Port and MountPort are nil where not given; 0 means to ask rpcbind.
	Port, MountPort *uint16
	// Address, ClientAddress and MountAddress are addr=, clientaddr= and
	// mountaddr=; MountHost is mounthost=.
	Address, ClientAddress, MountAddress netip.Addr
	MountHost                            string
	// MountVersion is mountvers=, or empty.
	MountVersion string
	// LocalLocks says that no lock shall reach the server.
	LocalLocks bool
	lockWord   bool // by "lock" or "nolock"
	// Retry is for how long temporary failures are retried; 0 means not at all.
	Retry time.Duration
	// Rest is for the kernel as it is.
	Rest []string
}

// ParseOptions reads the options of an NFS mount, one word to an element, without
// mount(8)'s generic ones; type is "nfs" or "nfs4". Of options that contradict each
// other the last wins. Errors are *[OptionError]s and, for versions that are never
// mounted, *[VersionError]s.
//
//   - "bg" means "fg": a mount has its result when the call returns.
//   - "retry=" is by default 0: the volume manager retries.
//   - "mounthost=" and the addresses are resolved here.
//   - "nfsprog=" and "mountprog=", which the kernel ignores, are refused.
func ParseOptions(fstype string, words []string) (Options, error) {
	o := Options{Transport: Transport{Protocol: "tcp"}}
	w := wish{major: absent, minor: absent, extra: absent}
	for _, word := range words {
		if err := o.add(&w, word); err != nil {
			return Options{}, err
		}
	}
	return o, o.chooseVersions(fstype, w)
}

// unquote takes the quotes away that keep a comma within a value.
func unquote(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

func (o *Options) add(w *wish, word string) (err error) {
	name, value, _ := strings.Cut(word, "=")
	value = unquote(value)
	switch name {
	case "vers", "nfsvers":
		return w.parse(name, value)
	case "v2", "v3", "v4", "v4.0", "v4.1", "v4.2":
		return w.parse(name, name[1:])
	case "minorversion":
		return w.parseMinor(name, value)
	case "proto":
		o.Transport, err = parseTransport(name, value)
	case "tcp", "udp", "rdma":
		o.Transport = Transport{Protocol: name}
	case "mountproto":
		o.MountTransport, err = parseTransport(name, value)
		if err == nil && o.MountTransport.Protocol == "rdma" {
			err = &OptionError{name, "the MOUNT protocol is spoken over tcp or udp"}
		}
	case "port":
		o.Port, err = parsePort(name, value)
	case "mountport":
		o.MountPort, err = parsePort(name, value)
	case "addr":
		o.Address, err = parseAddress(name, value)
	case "clientaddr":
		o.ClientAddress, err = parseAddress(name, value)
	case "mountaddr":
		o.MountAddress, err = parseAddress(name, value)
	case "mounthost":
		o.MountHost = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		if o.MountHost == "" {
			err = &OptionError{name, "it names no host"}
		}
	case "mountvers":
		if !slices.Contains([]string{"1", "2", "3"}, value) {
			return &OptionError{name, "it is none of 1, 2, 3"}
		}
		o.MountVersion = value
	case "retry":
		o.Retry, err = parseMinutes(name, value)
	case "fg", "bg":
	case "nfsprog", "mountprog":
		err = &OptionError{name, "the kernel knows the one program number only"}
	default:
		o.addRest(word, name, value)
	}
	return err
}

func (o *Options) addRest(word, name, value string) {
	switch name {
	case "lock", "nolock":
		o.lockWord, o.LocalLocks = true, name == "nolock"
	case "local_lock": // "lock" and "nolock" override it; but for "all" some locks reach the server
		o.LocalLocks = !o.lockWord && value == "all" || o.lockWord && o.LocalLocks
	}
	if name == "sloppy" {
		o.Rest = slices.Insert(o.Rest, 0, word) // it excuses only later options
		return
	}
	o.Rest = append(o.Rest, word)
}

// chooseVersions applies nfs(5): options of the MOUNT protocol mean NFSv3, and
// so does UDP, where nothing else is said.
func (o *Options) chooseVersions(fstype string, w wish) (err error) {
	only3 := o.MountHost != "" || o.MountAddress.IsValid() || o.MountVersion != "" || o.MountTransport.Protocol != "" || o.Transport.Protocol == "udp"
	switch {
	case fstype == "nfs4" && w.major == absent:
		w.major = 4
	case fstype == "nfs4" && w.major != 4:
		return &OptionError{w.option, "the type nfs4 is NFSv4; use the type nfs"}
	case w.major == absent && w.extra == absent && only3:
		w.major = 3
	}
	if o.Versions, err = w.versions(); err != nil {
		return err
	}
	o.Asked = w.asked
	if w.extra != absent {
		o.Asked = o.Versions[0].String()
	}
	if o.Versions[0].Major == 4 && o.Transport.Protocol == "udp" {
		return &OptionError{w.option, "NFSv4 is not spoken over UDP"}
	}
	return nil
}

// NeedsHelper tells options that only mount.nfs(8) and the daemons it belongs
// to can carry out, and why.
func NeedsHelper(words []string) (reason string, needs bool) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case name == "sec" && strings.Contains(value, "krb5"):
			reason, needs = "Kerberos needs rpc.gssd", true
		case name == "xprtsec" && value != "none":
			reason, needs = "RPC with TLS needs tlshd", true
		}
	}
	return reason, needs
}

func parsePort(option, value string) (*uint16, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return nil, &OptionError{option, "it is no port number"}
	}
	port := uint16(n)
	return &port, nil
}

func parseMinutes(option, value string) (time.Duration, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, &OptionError{option, "it is no number of minutes"}
	}
	return time.Duration(n) * time.Minute, nil
}

func parseAddress(option, value string) (netip.Addr, error) {
	a, err := netip.ParseAddr(value)
	if err != nil {
		return netip.Addr{}, &OptionError{option, "it is no IP address"}
	}
	return a.Unmap(), nil
}
