package rooms

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/podvol/podvol"

// mayImport lists, for each room, the rooms that its packages may import
// beside packages of their own room. A room is the longest of these prefixes.
func mayImport() map[string][]string {
	plugins := []string{"util", "mount", "mount/format", "mount/table", "volume", "volume/internal", "volume/internal/diskmount", "volume/lazyunmount"}
	return map[string][]string{
		"util":                             {},
		"util/testenv":                     {"util", "mount", "mount/fakemount", "mount/host", "mount/sandbox", "mount/table", "volume", "volume/objects", "volume/persistentvolume/index", "volume/volumemanager"},
		"util/testenv/csiparts":            {"util/testenv", "volume/volumetest/csitest"},
		"util/testenv/rendertest":          {"util/testenv", "volume", "volume/atomicdir", "volume/fakehost", "volume/podfiles", "volume/volumetest"},
		"mount":                            {"util", "mount/internal/failure", "mount/internal/fstypes", "mount/internal/mountopt"},
		"mount/internal/failure":           {},
		"mount/internal/fstypes":           {},
		"mount/internal/mountopt":          {},
		"mount/internal":                   {"util", "mount", "mount/internal/failure", "mount/internal/mountopt"},
		"mount/table":                      {"util", "mount", "mount/internal"},
		"mount/propagation":                {"util", "mount", "mount/internal", "mount/table"},
		"mount/hostns":                     {"util", "mount", "mount/host", "mount/internal", "mount/internal/failure", "mount/internal/mountopt", "mount/propagation", "mount/table"},
		"mount/host":                       {"util", "mount", "mount/internal", "mount/internal/failure", "mount/internal/fstypes", "mount/internal/mountopt", "mount/table"},
		"mount/fakemount":                  {"util", "mount", "mount/internal", "mount/internal/failure", "mount/internal/fstypes", "mount/internal/mountopt", "mount/table"},
		"mount/format":                     {"util", "mount", "mount/host", "mount/table"},
		"mount/sandbox":                    {"util", "mount", "mount/host", "mount/internal", "mount/table"},
		"volume":                           {"util", "volume/fileset"}, // see also contracts
		"volume/lazyunmount":               {"mount", "mount/table"},
		"volume/mountrecord":               {"util", "volume", "volume/lazyunmount"},
		"volume/internal":                  {"util", "mount", "mount/table", "volume", "volume/atomicdir", "volume/fileset", "volume/lazyunmount"},
		"volume/internal/diskmount":        {"util", "mount", "mount/format", "mount/table", "volume", "volume/internal"}, // file systems of the node's disks
		"volume/internal/latest":           {"util", "volume", "volume/objects"},
		"volume/internal/podspec":          {"volume", "volume/objects"},
		"volume/internal/following":        {"util"},
		"volume/internal/work":             {"util", "volume"}, // the reconcilers' queue
		"volume/objects":                   {"util", "volume"},
		"volume/objects/persisted":         {"util", "volume", "volume/internal", "volume/objects"},
		"volume/objects/cluster":           {"util", "volume", "volume/internal/following", "volume/objects"},
		"volume/clusterhost":               {"util", "volume", "volume/internal", "volume/internal/following", "volume/objects"},
		"volume/fileset":                   {},
		"volume/atomicdir":                 {"util", "volume/fileset"},
		"volume/podfiles":                  {"util", "volume", "volume/fileset", "volume/internal/work", "volume/internal", "volume/internal/podspec", "volume/objects"},
		"volume/containerenv":              {"util", "volume", "volume/internal", "volume/objects"},
		"volume/persistentvolume":          {"util", "volume", "volume/internal/latest", "volume/internal/work", "volume/internal", "volume/objects", "volume/persistentvolume/index", "volume/persistentvolume/internal/operation", "volume/persistentvolume/internal/reservation", "volume/persistentvolume/release"},
		"volume/persistentvolume/index":    {"util", "volume", "volume/internal"},
		"volume/attachdetach":              {"volume", "volume/internal/latest", "volume/internal/work", "volume/internal", "volume/internal/podspec", "volume/objects"},
		"volume/persistentvolume/release":  {"volume", "volume/internal", "volume/objects", "volume/persistentvolume/index"},
		"volume/persistentvolume/embedded": {"util", "mount", "mount/host", "mount/table", "volume", "volume/internal", "volume/objects", "volume/objects/persisted", "volume/persistentvolume", "volume/persistentvolume/index", "volume/persistentvolume/release"},
		"volume/localdiscovery":            {"util", "mount", "mount/format", "mount/table", "volume", "volume/objects", "volume/internal"},
		"volume/containermounts":           {"util", "mount", "mount/host", "mount/table", "volume", "volume/internal", "volume/lazyunmount", "volume/mountrecord"},
		"volume/volumemanager":             {"util", "mount", "mount/host", "mount/propagation", "mount/table", "volume", "volume/containermounts", "volume/objects", "volume/internal/work", "volume/internal", "volume/internal/podspec", "volume/volumemanager/internal/blockmap", "volume/volumemanager/internal/dependencies", "volume/volumemanager/internal/devices", "volume/volumemanager/internal/fsck", "volume/volumemanager/internal/growth", "volume/volumemanager/internal/lifecycle", "volume/volumemanager/internal/mountwatch", "volume/volumemanager/internal/oncepod", "volume/volumemanager/internal/podevents", "volume/volumemanager/internal/progress", "volume/volumemanager/internal/rebuilt", "volume/volumemanager/internal/rootdir", "volume/volumemanager/internal/statusrows", "volume/volumemanager/volumestatus", "volume/lazyunmount", "volume/mountrecord"},
		"volume/podrun":                    {"util", "mount", "mount/host", "mount/sandbox", "volume", "volume/containerenv", "volume/containermounts", "volume/objects", "volume/persistentvolume/embedded", "volume/standalone", "volume/volumemanager"},
		"volume/kubeletroot":               {"util", "mount"},
		"volume/ephemeralstorage":          {"volume"}, // beside the manager, for the agents that evict
		"volume/podrun/runroot":            {"util", "volume", "volume/volumemanager"},
		"volume/standalone": {"util", "mount", "mount/host", "mount/table", "volume", "volume/objects", "volume/objects/persisted", "volume/persistentvolume", "volume/persistentvolume/embedded",
			"volume/plugins", "volume/selfattach", "volume/volumemanager"},
		"volume/selfattach": {"util", "volume", "volume/internal", "volume/internal/work", "volume/mountrecord"},
		"volume/nodeagent": {"util", "mount", "mount/host", "mount/table", "volume", "volume/localdiscovery", "volume/nodeagent/manifestdir", "volume/objects", "volume/objects/persisted", "volume/persistentvolume",
			"volume/persistentvolume/embedded", "volume/standalone", "volume/volumemanager"},
		"volume/nodeagent/manifestdir": {"util", "volume", "volume/objects", "volume/volumemanager"},
		"volume/plugins":               plugins,
		"volume/plugins/csi":           append(slices.Clone(plugins), "volume/internal/work"), // it tells the cluster of drivers until that hears
		"volume/csitranslation":        {"volume", "volume/internal"},
		"volume/intree":                {"util", "mount", "mount/table", "volume", "volume/internal"},
		"volume/fakehost":              {"util", "mount", "mount/fakemount", "mount/host", "mount/table", "volume"},
		"volume/volumetest":            {"util", "util/testenv", "mount", "mount/fakemount", "mount/host", "mount/table", "volume", "volume/fakehost", "volume/volumetest/internal", "volume/volumetest/internal/sim", "volume/volumetest/internal/specs", "volume/mountrecord"},
		"volume/volumetest/csitest":    {"util", "util/testenv", "mount", "mount/format", "mount/host", "mount/table", "volume/internal", "volume/internal/work"},
		// parts of the kit that know none of its checks
		"volume/volumetest/internal/sim":   {"util", "mount", "mount/fakemount", "volume", "volume/fakehost", "volume/volumetest/internal", "volume/volumetest/internal/specs", "volume/mountrecord"},
		"volume/volumetest/internal/specs": {"volume"},
		"volume/volumetest/internal":       {"util", "mount", "mount/fakemount", "mount/host", "mount/table"},
		"examples": {"util", "mount", "mount/fakemount", "mount/host", "mount/propagation", "mount/sandbox", "mount/table", "volume", "volume/attachdetach", "volume/clusterhost", "volume/csitranslation", "volume/kubeletroot", "volume/plugins", "volume/plugins/csi", "volume/objects", "volume/objects/persisted", "volume/objects/cluster", "volume/persistentvolume", "volume/persistentvolume/embedded", "volume/persistentvolume/index", "volume/persistentvolume/release", "volume/localdiscovery",
			"volume/containerenv", "volume/containermounts", "volume/ephemeralstorage", "volume/volumemanager", "volume/standalone", "volume/nodeagent", "volume/nodeagent/manifestdir",
			"volume/atomicdir", "volume/podfiles", "volume/podrun", "volume/podrun/runroot", "volume/selfattach", "volume/volumetest/csitest"},
		"volume/volumemanager/internal/blockmap": {"util", "mount", "mount/table", "volume", "volume/internal"},
		// none of them knows a pod's volume as the manager does
		"volume/volumemanager/internal/dependencies": {"volume", "volume/objects"},
		"volume/volumemanager/internal/lifecycle":    {},
		"volume/volumemanager/internal/mountwatch":   {},
		"volume/volumemanager/internal/oncepod":      {"volume"},
		"volume/volumemanager/internal/statusrows":   {"mount", "mount/table", "volume", "volume/internal/podspec", "volume/mountrecord", "volume/volumemanager/internal/rootdir", "volume/volumemanager/volumestatus"},
		"volume/volumemanager/volumestatus":          {"mount", "volume", "volume/internal/podspec", "volume/lazyunmount", "volume/mountrecord", "volume/volumemanager/internal/oncepod", "volume/volumemanager/internal/rootdir"},
		"volume/volumemanager/internal/podevents":    {"volume", "volume/internal", "volume/internal/podspec", "volume/mountrecord"},
		// what a node mounts once for its pods, and not the manager that asks for it
		"volume/volumemanager/internal/devices":  {"util", "mount", "mount/table", "volume", "volume/internal/work", "volume/selinux", "volume/volumemanager/internal/blockmap", "volume/volumemanager/internal/rootdir", "volume/mountrecord"},
		"volume/volumemanager/internal/fsck":     {"util", "mount", "mount/table", "volume", "volume/containermounts", "volume/internal", "volume/volumemanager/internal/devices", "volume/volumemanager/internal/rootdir", "volume/lazyunmount", "volume/mountrecord"},
		"volume/volumemanager/internal/growth":   {"volume", "volume/internal", "volume/mountrecord", "volume/objects", "volume/volumemanager/internal/podevents"},
		"volume/volumemanager/internal/progress": {"util", "volume"},
		"volume/volumemanager/internal/rebuilt":  {"volume", "volume/volumemanager/internal/devices", "volume/volumemanager/internal/rootdir", "volume/mountrecord"},
		"volume/volumemanager/internal/rootdir":  {"util", "mount", "mount/table", "volume", "volume/mountrecord"},

		// who may have a volume now, and what takes long: neither knows a controller, nor the other
		"volume/persistentvolume/internal/operation":   {"util", "volume", "volume/internal/work", "volume/internal", "volume/persistentvolume/release"},
		"volume/persistentvolume/internal/reservation": {"volume", "volume/internal", "volume/persistentvolume/index"},
	}
}

// contracts are the packages that a plugin's author reads. Each lists the packages of this
// module that it may be built with, its imports' imports included; util is allowed to all of them.
func contracts() map[string][]string {
	contract := []string{"volume", "volume/layout"}
	return map[string][]string{
		"mount":               {"mount/internal/failure", "mount/internal/fstypes", "mount/internal/mountopt"},
		"volume":              {"volume/layout"},
		"volume/claimbinding": contract,
		"volume/fileset":      {},
		"volume/fsgroup":      contract,
		"volume/layout":       {},
		"volume/meter":        contract,
		"volume/podcheck":     contract,
		"volume/podstate":     {},
		"volume/reclaim":      contract,
		"volume/recyclerpod":  contract,
		"volume/selinux":      slices.Concat(contract, []string{"volume/podstate"}),
		"volume/validation":   slices.Concat(contract, []string{"volume/claimbinding", "volume/fileset"}),
		"volume/volumesource": contract,
	}
}

func TestContractsNeedNoEngine(t *testing.T) {
	for path, may := range contracts() {
		for _, p := range goList(t, "-deps", "./"+path) {
			dep, ours := inModule(p.ImportPath)
			if ours && dep != path && !strings.HasPrefix(dep, "util/") && !slices.Contains(may, dep) {
				t.Errorf("%s is built with %s; as a contract it may only need %v", path, dep, may)
			}
		}
	}
	for _, p := range goList(t, "./volume/...") {
		path, _ := inModule(p.ImportPath)
		if _, listed := contracts()[path]; !listed && roomOf(path) == "volume" {
			t.Errorf("%s is in the room of the contract, and not in contracts()", path)
		}
	}
}

// isTestSupport says whether only tests import a package: what lies in
// util/testenv, and the kits that users' own tests call.
func isTestSupport(path string) bool {
	kits := []string{"util/testenv", "util/rooms", "volume/fakehost", "volume/volumetest", "volume/objects/objectstest", "volume/objects/cluster/clustertest"}
	return slices.ContainsFunc(kits, func(kit string) bool { return path == kit || strings.HasPrefix(path, kit+"/") })
}

// offCore are the packages that bring modules of their own: only who imports
// them is built with those.
func offCore() map[string][]string {
	return map[string][]string{
		"examples/controller":                  {"k8s.io/client-go", "github.com/prometheus/client_golang"},
		"examples/nodehttp":                    {"github.com/prometheus/client_golang"},
		"examples/renderpod":                   {"k8s.io/client-go"},
		"examples/virtualkubelet":              {"k8s.io/client-go", "github.com/virtual-kubelet/virtual-kubelet"},
		"examples/virtualkubelet/csidrivers":   {"k8s.io/client-go"},
		"examples/virtualkubelet/criruntime":   {"google.golang.org/grpc"},
		"examples/virtualkubelet/kubeletapi":   {"k8s.io/client-go"},
		"examples/virtualkubelet/podlife":      {"k8s.io/client-go", "google.golang.org/grpc"},
		"util/testenv/csiparts":                {"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf"},
		"volume/clusterhost":                   {"k8s.io/client-go"},
		"volume/csitranslation":                {"github.com/container-storage-interface/spec", "k8s.io/csi-translation-lib"}, // the former in tests
		"volume/internal/following":            {"k8s.io/client-go"},
		"volume/objects/cluster":               {"k8s.io/client-go"},
		"volume/objects/cluster/clustertest":   {"k8s.io/client-go"},
		"volume/objects/cluster/election":      {"k8s.io/client-go"},
		"volume/internal/csiregistration":      {"google.golang.org/protobuf"},
		"volume/plugins/csi":                   {"github.com/container-storage-interface/spec", "google.golang.org/grpc"},
		"volume/plugins/image":                 {}, // by its parts
		"volume/plugins/image/internal/layers": {"github.com/klauspost/compress"},
		"volume/plugins/image/internal/store":  {},
		"volume/plugins/csi/controller":        {"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf"},
		"volume/plugins/csi/internal/drivers":  {"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf"},
		"volume/plugins/csi/internal/stats":    {"github.com/container-storage-interface/spec", "google.golang.org/protobuf"},
		"volume/volumetest/csitest":            {"github.com/container-storage-interface/spec", "google.golang.org/grpc", "google.golang.org/protobuf"},
	}
}

// coreModules are all the modules that the core, everything but examples, what
// is for tests and [offCore], may be built with. A new one is a choice to defend where it is added.
func coreModules() []string {
	return []string{
		module,
		"github.com/fxamacker/cbor/v2", "github.com/x448/float16", // apimachinery's serializers
		"github.com/go-logr/logr", "k8s.io/klog/v2", // mount-utils' and apimachinery's logging
		"github.com/json-iterator/go", "github.com/modern-go/concurrent", "github.com/modern-go/reflect2",
		"github.com/moby/sys/mountinfo",
		"go.yaml.in/yaml/v2", "gopkg.in/inf.v0",
		"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
		"k8s.io/api", "k8s.io/apimachinery", "k8s.io/kube-openapi", "k8s.io/mount-utils", "k8s.io/utils",
		"sigs.k8s.io/json", "sigs.k8s.io/randfill", "sigs.k8s.io/structured-merge-diff/v6", "sigs.k8s.io/yaml",
	}
}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Module                             *struct{ Path string }
	Standard                           bool
}

func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	command := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports,Module,Standard"}, args...)...)
	command.Dir = "../.."
	out, err := command.Output()
	if err != nil {
		var says []byte // such as an import cycle
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			says = exit.Stderr
		}
		t.Fatalf("%v: %v\n%s", command, err, says)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// ofExamples returns the packages of the examples' module, by reading them: the modules that
// only those need are not needed by tests of this one.
func ofExamples(t *testing.T) []goPackage {
	t.Helper()
	found := make(map[string]*goPackage)
	eachFile(t, func(dir, name string, path string) {
		if roomOf(dir) != "examples" {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		p := found[dir]
		if p == nil {
			p = &goPackage{ImportPath: module + "/" + dir}
			found[dir] = p
		}
		for _, spec := range file.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if strings.HasSuffix(name, "_test.go") {
				p.TestImports = append(p.TestImports, imported)
			} else {
				p.Imports = append(p.Imports, imported)
			}
		}
	})
	var packages []goPackage
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		packages = append(packages, *found[dir])
	}
	return packages
}

// inModule returns the package's path below the module, and whether it is
// there.
func inModule(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

func roomOf(path string) string {
	room := ""
	for prefix := range mayImport() {
		if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > len(room) {
			room = prefix
		}
	}
	return room
}

func TestImportDirection(t *testing.T) {
	packages := append(goList(t, "./..."), ofExamples(t)...)
	if len(packages) < 20 {
		t.Fatalf("only %d packages are listed; the test sees the wrong tree", len(packages))
	}
	for _, p := range packages {
		path, _ := inModule(p.ImportPath)
		room := roomOf(path)
		if room == "" {
			t.Errorf("%s lies in no room", path)
			continue
		}
		for _, imported := range p.Imports {
			target, ours := inModule(imported)
			if !ours {
				continue
			}
			if other := roomOf(target); other != room && !slices.Contains(mayImport()[room], other) {
				t.Errorf("%s imports %s: %s may only import %v", path, target, room, mayImport()[room])
			}
			if isTestSupport(target) && !isTestSupport(path) && path != "examples/csidriver" { // the kit's driver, for everybody
				t.Errorf("%s imports %s, which is for tests only", path, target)
			}
		}
	}
}

func TestPluginsDoNotImportEachOther(t *testing.T) {
	const plugins = "volume/plugins/"
	plugin := func(path string) string { // whose parts are packages below it
		name, _, _ := strings.Cut(strings.TrimPrefix(path, plugins), "/")
		return name
	}
	for _, p := range goList(t, "./volume/plugins/...") {
		path, _ := inModule(p.ImportPath)
		if !strings.HasPrefix(path, plugins) {
			continue
		}
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if target, ours := inModule(imported); ours && strings.HasPrefix(target, plugins) && plugin(target) != plugin(path) {
				t.Errorf("%s imports %s; plugins must not know each other", path, target)
			}
		}
	}
}

func TestCoreDependencies(t *testing.T) {
	args := []string{"-deps"}
	for _, p := range goList(t, "./util/...", "./mount/...", "./volume/...") {
		path, _ := inModule(p.ImportPath)
		if _, off := offCore()[path]; !off && !isTestSupport(path) {
			args = append(args, p.ImportPath)
		}
	}
	seen := map[string]bool{}
	for _, p := range goList(t, args...) {
		if p.Standard || p.Module == nil || seen[p.Module.Path] {
			continue
		}
		seen[p.Module.Path] = true
		if !slices.Contains(coreModules(), p.Module.Path) {
			t.Errorf("the core pulls in %s (for %s)", p.Module.Path, p.ImportPath)
		}
	}
	for _, allowed := range coreModules() {
		if !seen[allowed] {
			t.Errorf("the core no longer needs %s; take it off the list", allowed)
		}
	}
}

func TestModulesOffTheCore(t *testing.T) {
	offered := make(map[string]bool) // the modules
	for _, modules := range offCore() {
		for _, module := range modules {
			offered[module] = true
		}
	}
	for _, p := range append(goList(t, "./..."), ofExamples(t)...) {
		path, _ := inModule(p.ImportPath)
		if path == "examples/csidriver" { // of which the tests call the driver
			continue
		}
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		for module := range offered {
			uses := slices.ContainsFunc(imports, func(i string) bool { return i == module || strings.HasPrefix(i, module+"/") })
			if may := slices.Contains(offCore()[path], module); uses != may {
				t.Errorf("%s imports %s: %v; it should: %v", path, module, uses, may)
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files").Output()
	if err != nil {
		t.Logf("not a git checkout, looking at the packages alone: %v", err)
		out = nil
		for _, p := range goList(t, "./...") {
			path, _ := inModule(p.ImportPath)
			out = append(out, path+"\n"...)
		}
	}
	agreed := []string{"volume", "mount", "util", "examples", "testdata", "go.mod", "go.sum", "LICENSE", "README.md"}
	for file := range strings.Lines(string(out)) {
		top, _, _ := strings.Cut(strings.TrimSpace(file), "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(agreed, top) {
			t.Errorf("%s is not in the agreed top level %v", top, agreed)
		}
	}
}
