package nfs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/recyclerpod"
)

const (
	// maxAsked bounds the value of an annotation, in bytes: the kernel takes a
	// page of options at most.
	maxAsked = 2048
	// maxOption is what the kernel takes of one option, less the NUL (fsconfig(2)).
	maxOption = 255
)

// notAllowed says that a volume asks a server for something that the node's policy
// does not allow; by is the policy's entry that counts, empty if there is none.
func notAllowed(asked, name, server, by, next string) error {
	why := fmt.Sprintf("this node's NFS policy has no entry for server %q", server)
	if by != "" {
		why = fmt.Sprintf("this node's NFS policy for %q, which holds for server %q, does not allow it", by, server)
	}
	return &volume.Failure{Cause: ErrNotAllowed, Subject: name, What: fmt.Sprintf("%s of volume %q is refused: %s", asked, name, why), Next: next}
}

// parseAsked splits the value of an annotation into its options: separated by
// commas, around which there may be spaces, each once. Nothing asks for nothing.
func parseAsked(value string) (asked []string, err error) {
	if len(value) > maxAsked {
		return nil, fmt.Errorf("it has %d bytes, at most %d are taken", len(value), maxAsked)
	}
	if strings.Trim(value, " ") == "" {
		return nil, nil
	}
	for option := range strings.SplitSeq(value, ",") {
		option = strings.Trim(option, " ")
		if reason := malformed(option); reason != "" {
			return nil, fmt.Errorf("%q is no option: %s", option, reason)
		}
		if !slices.Contains(asked, option) {
			asked = append(asked, option)
		}
	}
	return asked, checkTogether(asked)
}

// malformed returns why a text cannot be one option of NFS.
func malformed(option string) string {
	name := optionName(option)
	switch {
	case option == "":
		return "it is empty"
	case len(option) > maxOption:
		return fmt.Sprintf("it is longer than %d bytes", maxOption)
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" || strings.Trim(name[:1], "_.-") == "":
		return "a name has only lower-case letters, digits, and . _ - within"
	case strings.ContainsFunc(option, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`,"'\`, r) }):
		return `a value has no spaces, quotes, commas, backslashes, or characters beyond ASCII`
	case option != name && isWord(name):
		return fmt.Sprintf("%q takes no value", name)
	}
	return ""
}

// isWord reports whether an option is complete as it is (mount(8), nfs(5)). With
// a value it would be taken for another than it is: the kernel reads "rw=1" as
// "rw".
func isWord(name string) bool {
	return strings.HasPrefix(name, "no") || slices.Contains([]string{
		"rw", "ro", "suid", "dev", "exec", "symfollow", "sync", "async", "dirsync",
		"atime", "diratime", "relatime", "strictatime", "lazytime", "silent", "loud", "defaults",
		"v2", "v3", "v4", "v4.0", "v4.1", "v4.2", "tcp", "tcp6", "udp", "udp6", "rdma", "rdma6",
		"hard", "soft", "softerr", "softreval", "intr", "fg", "bg", "ac", "cto", "acl", "lock", "posix",
		"resvport", "sharecache", "migration", "trunkdiscovery", "alignwrite",
	}, name)
}

func optionName(option string) string {
	name, _, _ := strings.Cut(option, "=")
	return name
}

// topic is what an option decides: options of one topic replace each other, as
// "exec" does "noexec" and "vers=3" "nfsvers=4.1".
func topic(option string) string {
	name := optionName(option)
	switch name {
	case "rw", "ro":
		return "ro"
	case "nfsvers", "vers", "minorversion", "v2", "v3", "v4", "v4.0", "v4.1", "v4.2":
		return "vers"
	case "proto", "tcp", "udp", "rdma":
		return "proto"
	case "hard", "soft", "softerr":
		return "hard"
	case "lock", "nolock", "local_lock":
		return "lock"
	case "sync", "async":
		return "sync"
	case "fg", "bg":
		return "fg"
	case "relatime", "norelatime", "atime", "noatime", "strictatime", "nostrictatime":
		return "atime"
	}
	return strings.TrimPrefix(name, "no")
}

// checkTogether returns why options cannot be given together.
func checkTogether(options []string) error {
	if first, second, ok := contradiction(options); ok {
		return fmt.Errorf("%q and %q contradict each other; keep one", first, second)
	}
	// Alone it would replace another's version, and readers differ on its meaning
	// then.
	minor := slices.IndexFunc(options, func(o string) bool { return optionName(o) == "minorversion" })
	if minor < 0 || slices.ContainsFunc(options, func(o string) bool { return o == "vers=4" || o == "nfsvers=4" || o == "v4" }) {
		return nil
	}
	return fmt.Errorf("%q needs \"vers=4\" beside it; better is \"vers=4.1\" and the like, which says both", options[minor])
}

// contradiction finds two options that cannot both hold.
func contradiction(options []string) (first, second string, found bool) {
	seen := make(map[string]string)
	for _, o := range options {
		t := topic(o)
		if optionName(o) == "minorversion" {
			t = "minorversion" // which completes vers=4
		}
		if first, ok := seen[t]; ok && first != o {
			return first, o, true
		}
		seen[t] = o
	}
	return "", "", false
}

// optionsFor returns the options of an inline volume: "ro" if it is read-only,
// then the policy's defaults for its server, then what its pod asks for, which
// replaces defaults of the same topic. Errors match [ErrNotAllowed], or are
// a *[volume.InvalidSpecError] for what contradicts a read-only volume.
func (p InlinePolicy) optionsFor(name, server string, asked []string, readOnly bool) ([]string, error) {
	entry, _ := p.forServer(server)
	var refused []error
	for _, o := range asked {
		if !allows(entry.Allow, o) || neverAllowed(o) != "" {
			refused = append(refused, optionNotAllowed(name, server, entry.Server, o))
		}
	}
	if len(refused) > 0 {
		return nil, volume.NothingDone(joinLines(refused))
	}
	var options []string
	decided := make(map[string]bool)
	for _, o := range asked {
		decided[topic(o)] = true
	}
	if readOnly {
		if slices.Contains(asked, "rw") {
			return nil, volume.Invalid(annotationField(AnnotationMountOptions+"/"+name), `"rw" contradicts a read-only volume; drop one of the two`)
		}
		options, decided["ro"] = append(options, "ro"), true
	}
	for _, o := range entry.Defaults {
		if !decided[topic(o)] && !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	for _, o := range asked {
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	return options, nil
}

func optionNotAllowed(name, server, by, option string) error {
	var next string
	switch reason := neverAllowed(option); {
	case reason != "":
		next = "no policy can allow it: " + reason
	case by != "":
		next = fmt.Sprintf("remove it, or have the node's administrator add %q to what that entry allows", option)
	default:
		next = fmt.Sprintf("remove it, or have the node's administrator add {server: %q, allow: [%q]}", server, option)
	}
	return notAllowed(fmt.Sprintf("mount option %q", option), name, server, by, next)
}

// joinLines joins errors, of which there is at least one.
func joinLines(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// The annotations; see [InlinePolicy].
const (
	// AnnotationMountOptions followed by "/" and the name of an inline NFS
	// volume is the key of a pod's annotation with mount options.
	AnnotationMountOptions = "mount-options.podvol.io"
	// AnnotationMakeVolumeDirectory followed by "/" and the name of an inline NFS
	// volume is the key of a pod's annotation with the mode of a directory that
	// shall be made if it is missing: octal digits, "0770" or "2770".
	AnnotationMakeVolumeDirectory = "make-directory.podvol.io"
	// AnnotationMakeDirectory is the same of a PersistentVolume.
	AnnotationMakeDirectory = "podvol.io/make-directory"
)

var _ podcheck.Plugin = (*plugin)(nil)

// CheckPod implements [podcheck.Plugin]: it refuses annotations for volumes
// that are no inline NFS volumes of the pod, unreadable ones, and unknown ones of
// podvol.io and the domains below it. Whether the node's policy allows them is
// decided for the volume.
func (p *plugin) CheckPod(pod *v1.Pod) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		prefix, name, _ := strings.Cut(key, "/")
		if prefix != AnnotationMountOptions && prefix != AnnotationMakeVolumeDirectory {
			faults = append(faults, misspelled(key, prefix))
			continue
		}
		if name == "" {
			faults = append(faults, volume.Invalid(annotationField(key), "names no volume; write %s/<volume>", prefix))
			continue
		}
		if err := annotated(pod, key, name); err != nil {
			faults = append(faults, err)
			continue
		}
		var err error
		if prefix == AnnotationMountOptions {
			_, err = askedOptions(pod, name)
		} else {
			_, err = askedMode(pod, name)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// misspelled refuses an annotation of podvol's that pods do not have.
func misspelled(key, domain string) error {
	const ours = "podvol.io"
	switch {
	case domain != ours && !strings.HasSuffix(domain, "."+ours), key == recyclerpod.Annotation:
		return nil
	case key == AnnotationMakeDirectory:
		return volume.Invalid(annotationField(key), "is for PersistentVolumes; for a pod's own NFS volume write %s/<volume>", AnnotationMakeVolumeDirectory)
	}
	return volume.Invalid(annotationField(key), "is no annotation of podvol's for pods; there are %s/<volume> and %s/<volume>", AnnotationMountOptions, AnnotationMakeVolumeDirectory)
}

func annotationField(key string) string { return "metadata.annotations[" + strconv.Quote(key) + "]" }

// annotated refuses an annotation for a volume that is no inline NFS volume.
func annotated(pod *v1.Pod, key, name string) error {
	field := annotationField(key)
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 {
		return volume.Invalid(field, "the pod has no volume %q", name)
	}
	switch v := pod.Spec.Volumes[i]; {
	case v.NFS != nil:
		return nil
	case v.PersistentVolumeClaim != nil || v.Ephemeral != nil:
		return volume.Invalid(field, "volume %q is a claim's: mount options belong into spec.mountOptions of its PersistentVolume, and the mode of a directory to be made into the annotation %s there", name, AnnotationMakeDirectory)
	}
	return volume.Invalid(field, "volume %q is no NFS volume, and no other is mounted with options of the pod's", name)
}

// askedOptions are the options that a pod asks for, of one of its volumes.
func askedOptions(pod *v1.Pod, name string) ([]string, error) {
	key := AnnotationMountOptions + "/" + name
	asked, err := parseAsked(pod.Annotations[key])
	if err != nil {
		return nil, volume.Invalid(annotationField(key), "%v", err)
	}
	return asked, nil
}

// askedMode is the mode with which a pod wants the directory of one of its
// volumes made; nil: it shall not be.
func askedMode(pod *v1.Pod, name string) (*uint32, error) {
	return modeIn(pod.Annotations, AnnotationMakeVolumeDirectory+"/"+name)
}

// modeIn reads an annotation: three octal digits, or four with the set-group-id
// and the sticky bit. The directory's owner must be able to use it.
func modeIn(annotations map[string]string, key string) (*uint32, error) {
	value, ok := annotations[key]
	if !ok {
		return nil, nil
	}
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || len(value) < 3 || len(value) > 5 || mode > 0o3777 || mode&0o700 != 0o700 || value[0] == '+' {
		return nil, volume.Invalid(annotationField(key),
			`%q is no mode for a directory that its owner can use: octal digits such as "0770", "2770" with the set-group-id bit, or "1777"`, value)
	}
	return new(uint32(mode)), nil
}

// neverAllowed returns why no pod may ask for an option, whatever a policy says.
func neverAllowed(option string) string {
	name := optionName(option)
	if refused, ok := errors.AsType[*mount.OptionError](mount.CheckOptions([]string{option})); ok {
		return refused.Reason
	}
	switch {
	case strings.HasPrefix(name, "x-"):
		return "it is for programs that read fstab"
	case name == "source":
		return "it names another export than the volume does"
	case name == "sloppy":
		return "it would hide that other options are wrong"
	}
	return ""
}

func reachesFurther(name string) bool {
	return slices.Contains([]string{
		"addr", "clientaddr", "mountaddr", "mounthost", "port", "mountport",
		"sec", "xprtsec", "cert_serial", "privkey_serial",
		"context", "fscontext", "defcontext", "rootcontext",
		"fsc", "lookupcache",
	}, name)
}

// allows reports whether one of a policy's options allows an asked one.
func allows(allowed []string, asked string) bool {
	name := optionName(asked)
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == asked || a == name && !reachesFurther(name)
	})
}

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
