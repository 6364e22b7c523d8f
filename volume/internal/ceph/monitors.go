// Package ceph has the parts that the plugins of Ceph share, cephfs and rbd: the monitors of a
// cluster and the key of its user, for the kernel's client.
package ceph

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume"
)

const (
	// maxMonitors is the kernel's CEPH_MAX_MON.
	maxMonitors = 31
	defaultPort = 6789
	// resolveTimeout bounds the look-up of all names of a volume.
	resolveTimeout = 10 * time.Second
)

// Monitor is where one monitor of a cluster listens.
type Monitor struct {
	// Host is an address, without brackets and in its usual spelling, or a name.
	Host string
	Port uint16
}

func (m Monitor) String() string { return net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port))) }

var monitorName = lazyregexp.New(`^[[:alnum:]]([[:alnum:]._-]{0,251}[[:alnum:]])?$`)

// ParseMonitors reads the monitors of a source, each once: addresses or names, with or without a
// port. IPv6 addresses with a port are in brackets. An error is a *[volume.InvalidSpecError]
// about field.
func ParseMonitors(field string, given []string) ([]Monitor, error) {
	if len(given) == 0 || len(given) > maxMonitors {
		return nil, volume.Invalid(field, "are %d; the kernel takes 1 to %d", len(given), maxMonitors)
	}
	var all []Monitor
	for n, text := range given {
		m, err := parseMonitor(text)
		if err != nil {
			return nil, volume.Invalid(fmt.Sprintf("%s[%d]", field, n), "%.128q %v", text, err)
		}
		if !slices.Contains(all, m) {
			all = append(all, m)
		}
	}
	return all, nil
}

func parseMonitor(text string) (Monitor, error) {
	host, port := text, strconv.Itoa(defaultPort)
	if bare, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(bare, "]") {
		host = strings.TrimSuffix(bare, "]")
		if !strings.Contains(host, ":") {
			return Monitor{}, fmt.Errorf("has no IPv6 address in its brackets")
		}
	} else if strings.Count(text, ":") == 1 || ok {
		var err error
		if host, port, err = net.SplitHostPort(text); err != nil {
			return Monitor{}, fmt.Errorf("is no host and port")
		}
		if ok && !strings.Contains(host, ":") {
			return Monitor{}, fmt.Errorf("has no IPv6 address in its brackets")
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return Monitor{}, fmt.Errorf("has no port between 1 and 65535")
	}
	address, err := netip.ParseAddr(host)
	switch {
	case err != nil && (!monitorName().MatchString(host) || isNumeric(host)):
		return Monitor{}, fmt.Errorf("has neither an address nor the name of a host")
	case err != nil:
		return Monitor{strings.ToLower(host), uint16(number)}, nil
	case address.Zone() != "" || address.IsUnspecified() || address.IsMulticast():
		return Monitor{}, fmt.Errorf("has an address that the kernel connects to no monitor by")
	}
	return Monitor{address.Unmap().String(), uint16(number)}, nil
}

// isNumeric tells old spellings of addresses, such as 127.1 and 0x7f.1, from names.
func isNumeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	_, err := strconv.ParseUint(last, 0, 64)
	return err == nil || strings.Trim(last, "0123456789") == ""
}

// Resolver looks up names; [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve returns the monitors as the kernel takes them: addresses with ports, separated by
// commas. Names are looked up in r, for ten seconds at most. One that is not found fails only
// where no monitor is left. Of addresses beyond the kernel's limit the last are left out. An
// error has done nothing.
func Resolve(ctx context.Context, r Resolver, monitors []Monitor) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var all []string
	var failure error
	for _, m := range monitors {
		addresses, err := resolve(ctx, r, m.Host)
		if err != nil {
			failure = fmt.Errorf("look up monitor %s: %w", m.Host, err)
		}
		for _, a := range addresses {
			text := netip.AddrPortFrom(a.Unmap().WithZone(""), m.Port).String()
			if !slices.Contains(all, text) && len(all) < maxMonitors {
				all = append(all, text)
			}
		}
	}
	if len(all) == 0 {
		return "", volume.NothingDone(failure)
	}
	return strings.Join(all, ","), nil
}

func resolve(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{address}, nil
	}
	addresses, err := r.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = fmt.Errorf("it has no address")
	}
	return addresses, err
}

// SplitAddresses reads what [Resolve] made.
func SplitAddresses(text string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for item := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddrPort(item)
		if err != nil {
			return nil, err
		}
		all = append(all, address)
	}
	return all, nil
}

// Reaches reports whether some of the monitors may be among addresses: a name has had others at
// other times.
func Reaches(monitors []Monitor, addresses []netip.AddrPort) bool {
	return slices.ContainsFunc(monitors, func(m Monitor) bool {
		host, err := netip.ParseAddr(m.Host)
		return err != nil || slices.Contains(addresses, netip.AddrPortFrom(host, m.Port))
	})
}

var userName = lazyregexp.New(`^[[:alnum:]_][[:alnum:]._-]{0,127}$`)

// CheckUser refuses what is no user of a cluster, without its "client.". The error is a
// *[volume.InvalidSpecError] about field.
func CheckUser(field, user string) error {
	if !userName().MatchString(user) || strings.HasPrefix(user, "client.") {
		return volume.Invalid(field, "%.128q is no name of a user; write admin for client.admin", user)
	}
	return nil
}
