package nfs

import (
	"fmt"
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

// Source is one directory of one server.
type Source struct {
	// Host is a name or an address, without brackets.
	Host string
	// Path is the part after the colon; it is not empty.
	Path string
}

// ParseSource reads server:/path as the kernel does: up to the first colon, or
// within brackets, is the server; an IPv6 address needs the brackets. Errors
// are *[SourceError]s.
func ParseSource(source string) (Source, error) {
	refuse := func(reason string) (Source, error) { return Source{}, &SourceError{source, reason} }
	host, path, ok := strings.Cut(source, ":")
	if inner, bracketed := strings.CutPrefix(source, "["); bracketed {
		host, path, ok = strings.Cut(inner, "]:")
		addr, err := netip.ParseAddr(host)
		if ok && (err != nil || !addr.Is6()) {
			return refuse("the text in brackets is no IPv6 address")
		}
	}
	switch {
	case strings.Contains(source, "://"):
		return refuse("NFS URLs are not understood; write server:/path")
	case !ok:
		return refuse("it is not server:/path")
	case host == "":
		return refuse("it names no server")
	case path == "":
		return refuse("it names no path")
	case strings.HasPrefix(path, ":"), !strings.HasPrefix(path, "/"):
		return refuse("the path does not begin with /; an IPv6 address needs brackets")
	case strings.Contains(host, ","):
		return refuse("a list of servers is not supported")
	case strings.ContainsAny(host, "/ \t\n\\"):
		return refuse("the server's name has a character that no name has")
	}
	return Source{host, path}, nil
}

// String is the source as the kernel is given it.
func (s Source) String() string {
	if strings.Contains(s.Host, ":") {
		return "[" + s.Host + "]:" + s.Path
	}
	return s.Host + ":" + s.Path
}

// Transport is how a service is reached.
type Transport struct {
	// Protocol is "tcp", "udp" or "rdma".
	Protocol string
	// Family is 4 or 6 where the option says so, else 0.
	Family int
}

// parseTransport reads the value of proto= or mountproto=. As in nfs(5), the
// plain names stand for IPv4.
func parseTransport(option, value string) (Transport, error) {
	switch value {
	case "tcp", "udp", "rdma":
		return Transport{value, 4}, nil
	case "tcp6", "udp6", "rdma6":
		return Transport{value[:len(value)-1], 6}, nil
	}
	return Transport{}, &OptionError{option, "it is none of tcp, tcp6, udp, udp6, rdma, rdma6"}
}

// fits reports whether an address can be used.
func (t Transport) fits(a netip.Addr) bool {
	return t.Family == 0 || t.Family == 4 == a.Is4()
}

// network is the word of a resolver for the addresses that fit.
func (t Transport) network() string {
	switch t.Family {
	case 4:
		return "ip4"
	case 6:
		return "ip6"
	}
	return "ip"
}

// netid is the kernel's and rpcbind's word for a protocol to an address.
func netid(protocol string, a netip.Addr) string {
	if a.Is4() {
		return protocol
	}
	return protocol + "6"
}

// String is the transport as the option proto= has it.
func (t Transport) String() string {
	if t.Family == 6 {
		return t.Protocol + "6"
	}
	return t.Protocol
}

// Version is a version of the protocol; Minor is 0 for NFSv3.
type Version struct{ Major, Minor int }

// String is the version as the kernel's option vers= takes it: "3", "4.2".
func (v Version) String() string {
	if v.Major < 4 {
		return strconv.Itoa(v.Major)
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// newest returns the versions of NFSv4 from the newest down.
func newest() []Version { return []Version{{4, 2}, {4, 1}, {4, 0}} }

// wish is which versions the options ask for.
type wish struct {
	major, minor int // of the last vers= or the like; absent where not given
	extra        int // of minorversion=
	asked        string
	option       string // the word that asked, for errors
}

// absent stands for a number that was not given.
const absent = -1

// parse reads the value of vers= or nfsvers=, or the part after "v" in v4.1.
func (w *wish) parse(option, value string) (err error) {
	w.option, w.asked, w.minor = option, value, absent
	majorText, minorText, hasMinor := strings.Cut(value, ".")
	if w.major, err = parseNumber(option, majorText); err != nil || !hasMinor {
		return err
	}
	w.minor, err = parseNumber(option, minorText)
	return err
}

func (w *wish) parseMinor(option, value string) (err error) {
	w.option = option
	w.extra, err = parseNumber(option, value)
	return err
}

// parseNumber takes a decimal number as it is written without more.
func parseNumber(option, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || text != strconv.FormatUint(n, 10) {
		return 0, &OptionError{option, "it is no version of NFS"}
	}
	return int(n), nil
}

// versions are those to try, in order.
func (w wish) versions() ([]Version, error) {
	minor := w.minor
	if w.extra != absent {
		minor = w.extra
	}
	switch {
	case minor != absent && w.major != 4 && w.major != absent:
		return nil, &OptionError{w.option, "only NFSv4 has minor versions"}
	case minor > 2:
		return nil, &VersionError{Asked: w.asked, Err: fmt.Errorf("NFSv4.%d is not known here", minor)}
	case minor != absent:
		return []Version{{4, minor}}, nil // minorversion= alone can only mean NFSv4
	case w.major == absent:
		return append(newest(), Version{Major: 3}), nil
	case w.major == 4:
		return newest(), nil
	case w.major == 3:
		return []Version{{Major: 3}}, nil
	}
	return nil, &VersionError{Asked: w.asked, Err: fmt.Errorf("NFSv%d is not mounted; 3 and 4 are", w.major)}
}
