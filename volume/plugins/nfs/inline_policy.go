package nfs

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// InlinePolicy says what pods may ask of NFS servers by annotations:
//
//	mount-options.podvol.io/<volume>: vers=4.1,nconnect=4
//	make-directory.podvol.io/<volume>: "0770"
//
// The first mounts an inline NFS volume of the pod with these options, the second
// makes its directory below the export, with this mode, when a mount says that it
// is missing. PersistentVolumes have an annotation for the latter,
// [AnnotationMakeDirectory], which needs MakeBelow as a pod's does: directories
// are made on a share that others use too. Their spec.mountOptions are their
// author's choice, and no policy is asked.
//
// Options matter when a volume is mounted: a mount stays as it is after the pod's
// annotations or the policy have changed. Its zero value allows nothing, and a
// pod that asks nevertheless is refused.
type InlinePolicy struct {
	// Servers are the servers that pods may ask something of. For each volume
	// the entry with the closest Server counts, and no other: the name or address
	// itself, then the longest suffix or network, then "*". Their order means
	// nothing.
	Servers []ServerPolicy `yaml:"servers"`
}

// ServerPolicy is what pods may ask of some servers.
type ServerPolicy struct {
	// Server is a host name, "*.suffix" for all names below it, an address, a
	// network ("10.0.0.0/8"), or "*". Names are compared as the manifests spell
	// them, without case, and are not resolved: a network does not hold servers
	// given by name, nor a name servers given by address. So a user who names a
	// network's servers in DNS escapes its entry: write rules for all servers under
	// "*" too.
	Server string `yaml:"server"`
	// Allow are the options that pods may ask for: "timeo" with any value or none,
	// "vers=4.1" with just this one. Some options reach further than the mount: the
	// server's host and the client's identity (addr, clientaddr, mountaddr,
	// mounthost, port, mountport, sec, xprtsec, cert_serial, privkey_serial), the
	// files' SELinux label (context and the like), and this node's cache (fsc,
	// lookupcache). Those are allowed only as they are written here.
	Allow []string `yaml:"allow"`
	// Defaults are options that inline volumes get which do not ask for others
	// instead. They need not be allowed. They enforce nothing unless the entry of
	// "*" has them too.
	Defaults []string `yaml:"defaults"`
	// MakeBelow are exports, by their absolute paths, below which missing
	// directories may be made, for inline volumes and PersistentVolumes.
	MakeBelow []string `yaml:"makeBelow"`
}

// Check returns the policy's faults: one error of [ErrBadPolicy] for each,
// joined.
func (p InlinePolicy) Check() error {
	c := policyChecker{seen: make(map[string]int)}
	for i, s := range p.Servers {
		c.server(i, s)
	}
	return c.err()
}

// policyChecker collects the faults of a policy.
type policyChecker struct {
	seen   map[string]int // servers, in their one spelling
	faults []error
}

func (c *policyChecker) refuse(field, format string, args ...any) {
	c.faults = append(c.faults, &volume.Failure{Cause: ErrBadPolicy, Subject: field, What: fmt.Sprintf("NFS policy: %s: %s", field, fmt.Sprintf(format, args...))})
}

func (c *policyChecker) server(i int, s ServerPolicy) {
	field := fmt.Sprintf("servers[%d]", i)
	pattern, err := parsePattern(s.Server)
	if err != nil {
		c.refuse(field+".server", "%v", err)
	} else if first, twice := c.seen[pattern.String()]; twice {
		c.refuse(field+".server", "%s is already in servers[%d]; merge the two entries", pattern, first)
	} else {
		c.seen[pattern.String()] = i
	}
	for j, o := range s.Allow {
		c.allowed(fmt.Sprintf("%s.allow[%d]", field, j), o)
	}
	for j, o := range s.Defaults {
		c.byDefault(fmt.Sprintf("%s.defaults[%d]", field, j), o)
	}
	if err := checkTogether(s.Defaults); err != nil {
		c.refuse(field+".defaults", "%v", err)
	}
	for j, dir := range s.MakeBelow {
		if err := validation.CheckAbsolutePath("path", dir); err != nil {
			c.refuse(fmt.Sprintf("%s.makeBelow[%d]", field, j), "must be the absolute path of an export without \"..\", is %q", dir)
		}
	}
}

func (c *policyChecker) option(field, option string) bool {
	if reason := malformed(option); reason != "" {
		c.refuse(field, "%q is no option: %s", option, reason)
		return false
	}
	if reason := neverAllowed(option); reason != "" {
		c.refuse(field, "%q: %s", option, reason)
		return false
	}
	return true
}

func (c *policyChecker) allowed(field, option string) {
	if c.option(field, option) && takesValue(option) && !strings.Contains(option, "=") {
		c.refuse(field, "%q reaches further than the mount; write out the one value that pods may ask for, %s=…", option, option)
	}
}

// byDefault refuses what would make each mount of an entry's volumes fail.
func (c *policyChecker) byDefault(field, option string) {
	switch {
	case !c.option(field, option):
	case isOtherVersion(option):
		c.refuse(field, "%q asks for a version that is not mounted; there are 3, 4, 4.0, 4.1 and 4.2", option)
	case isUnknownWord(option):
		c.refuse(field, "%q is no option of nfs(5) or mount(8), or needs a value", option)
	}
}

// isUnknownWord reports whether an option without a value is none that nfs(5) or
// mount(8) have. Of those with one the kernel alone knows all.
func isUnknownWord(option string) bool {
	more := []string{"fsc", "rdirplus", "iversion", "mand", "auto"} // some have a value in other kernels
	return !strings.Contains(option, "=") && !isWord(option) && !slices.Contains(more, option)
}

// isOtherVersion reports whether an option asks for a version that no mount has.
func isOtherVersion(option string) bool {
	name, value, _ := strings.Cut(option, "=")
	if name == "vers" || name == "nfsvers" {
		return !slices.Contains([]string{"3", "4", "4.0", "4.1", "4.2"}, value)
	}
	return option == "v2"
}

func (c *policyChecker) err() error {
	switch len(c.faults) {
	case 0:
		return nil
	case 1:
		return c.faults[0]
	}
	return joinLines(c.faults)
}

// takesValue reports whether an option that reaches further than the mount
// always has a value; see [ServerPolicy].
func takesValue(option string) bool {
	name := optionName(option)
	return reachesFurther(name) && name != "fsc"
}

// maxPolicy bounds a policy's file, in bytes.
const maxPolicy = 1 << 20

// ParsePolicy reads a policy from YAML, or JSON, which is a part of it:
//
//	servers:
//	- server: "*.storage.example.org"
//	  allow: [vers=4.1, vers=4.2, nconnect, hard, soft, timeo, retrans]
//	  defaults: [nosuid, nodev]
//	  makeBelow: [/export/pods]
//
// The fields are [InlinePolicy]'s and [ServerPolicy]'s. Unknown and repeated
// fields, and faults of YAML, are refused with their line; faults of the values
// by [ErrBadPolicy]. The text of an error holds no more of the file than field
// names and the faulty values.
func ParsePolicy(r io.Reader) (InlinePolicy, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxPolicy+1))
	if err != nil {
		return InlinePolicy{}, err
	}
	if len(text) > maxPolicy {
		return InlinePolicy{}, fmt.Errorf("NFS policy: it is larger than %d bytes", maxPolicy)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.SetStrict(true)
	var policy InlinePolicy
	switch err := decoder.Decode(&policy); {
	case errors.Is(err, io.EOF):
		return InlinePolicy{}, errors.New("NFS policy: it is empty; write servers: [] to allow nothing")
	case err != nil:
		return InlinePolicy{}, fmt.Errorf("NFS policy: %s", plainYAML(err))
	}
	if err := decoder.Decode(new(InlinePolicy)); !errors.Is(err, io.EOF) {
		return InlinePolicy{}, errors.New("NFS policy: there is more than one document, of which only one would count")
	}
	return policy, policy.Check()
}

// plainYAML takes the names of Go's types out of what the decoder says.
func plainYAML(err error) string {
	names := strings.NewReplacer(
		"unmarshal errors:\n  ", "",
		" in type nfs.InlinePolicy", "", " in type nfs.ServerPolicy", " in a server's entry",
		"into nfs.InlinePolicy", "into a policy", "into nfs.ServerPolicy", "into a server's entry",
		"into []nfs.ServerPolicy", "into a list of servers", "into []string", "into a list of words",
	)
	return names.Replace(strings.TrimPrefix(err.Error(), "yaml: "))
}
