package nfs

import (
	"net/netip"
	"strings"
)

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
			return refuse("what is in brackets is no IPv6 address")
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
