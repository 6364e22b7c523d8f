package nfs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// serverPattern says which servers an entry of a policy is for. Either network
// is valid, or name is set, or neither for all servers.
type serverPattern struct {
	network netip.Prefix // of one address, or of many
	name    string       // lower case, without a dot at its end
	below   bool         // all names below name, and not name itself
}

// String is the one spelling that all of the same pattern have.
func (p serverPattern) String() string {
	switch {
	case p.network.IsValid() && p.network.IsSingleIP():
		return p.network.Addr().String()
	case p.network.IsValid():
		return p.network.String()
	case p.name == "":
		return "*"
	case p.below:
		return "*." + p.name
	}
	return p.name
}

func parsePattern(text string) (serverPattern, error) {
	if text == "*" {
		return serverPattern{}, nil
	}
	if suffix, ok := strings.CutPrefix(text, "*."); ok {
		name, err := patternName(suffix)
		return serverPattern{name: name, below: true}, err
	}
	if strings.Contains(text, "/") {
		return parseNetwork(text)
	}
	server, _ := unbracket(text)
	if addr, ok := addressOf(server); ok {
		return serverPattern{network: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	name, err := patternName(text)
	return serverPattern{name: name}, err
}

func parseNetwork(text string) (serverPattern, error) {
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return serverPattern{}, fmt.Errorf("%q is no network, such as 10.0.0.0/8; exports are named under makeBelow", text)
	case network.Addr().Is4In6():
		return serverPattern{}, fmt.Errorf("%q is an IPv4 network in IPv6 form; write it as IPv4", text)
	case network.Masked() != network:
		return serverPattern{}, fmt.Errorf("%q has bits beyond its length; is %s meant?", text, network.Masked())
	}
	return serverPattern{network: network}, nil
}

// patternName refuses what could never be the server of a volume.
func patternName(text string) (string, error) {
	name := normalName(text)
	switch {
	case name == "":
		return "", errors.New(`must be a host name, *.suffix, an address, a network, or "*"`)
	case strings.ContainsAny(name, "*:") || checkHostName(name) != nil || strings.HasPrefix(name, "."):
		return "", fmt.Errorf(`%q is no host name, *.suffix, address or network, nor "*"`, text)
	case isNumeric(name):
		return "", fmt.Errorf(`%q is no address in its usual form, and no name ends in a number; a network is written like 10.0.0.0/8`, text)
	}
	return name, nil
}

// normalName is the one spelling of a host name.
func normalName(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// addressOf reads an address, of whose spellings one is left: a zone says how to
// reach it, and an IPv4 address may come in IPv6 form.
func addressOf(server string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(server)
	return addr.Unmap().WithZone(""), err == nil
}

// rank is 0 where a server is none of the pattern's, and else the higher the
// closer the pattern is to it.
func (p serverPattern) rank(server string) int {
	const one = 1 << 16 // more than any name or network is long
	addr, isAddress := addressOf(server)
	switch {
	case p.network.IsValid():
		if !isAddress || !p.network.Contains(addr) {
			return 0
		}
		if p.network.IsSingleIP() {
			return one
		}
		return 2 + p.network.Bits()
	case p.name == "":
		return 1
	case isAddress:
		return 0
	case p.below && strings.HasSuffix(normalName(server), "."+p.name):
		return 2 + len(p.name)
	case !p.below && normalName(server) == p.name:
		return one
	}
	return 0
}

// forServer returns the entry that counts for a server, in its one spelling.
func (p InlinePolicy) forServer(server string) (entry ServerPolicy, found bool) {
	best := 0
	for _, s := range p.Servers {
		pattern, err := parsePattern(s.Server)
		if err != nil {
			continue // Init has refused it
		}
		if rank := pattern.rank(server); rank > best {
			best, entry, found = rank, s, true
			entry.Server = pattern.String()
		}
	}
	return entry, found
}
