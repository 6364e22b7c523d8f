// Package pluginlist tells which volume plugins podvol has, what they can do, and whether this machine
// has what their volumes need.
package pluginlist

import (
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// Plugin is what is known of a plugin. Its keys are part of the command's contract.
type Plugin struct {
	Name string `json:"name"`
	// Inline and PersistentVolume are the types of source that it takes, as manifests spell them.
	// Translated are the types whose volumes are those of CSI drivers today.
	Inline           []string `json:"inline,omitempty"`
	PersistentVolume []string `json:"persistentVolume,omitempty"`
	Translated       []string `json:"translated,omitempty"`
	// AccessModes are those that its PersistentVolumes can have at most.
	AccessModes []v1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// Supports has attach, block, grow and provision, as the plugin can.
	Supports []string `json:"supports,omitempty"`
	Needs    []Need   `json:"needs,omitempty"`
	// Ready: the machine has all that can be looked for.
	Ready bool `json:"ready"`
}

// Of describes plugins, by name. Several of one name are one plugin, of a node and for claims. They
// need not be initialised.
func Of(plugins []volume.VolumePlugin, translator volume.Translator, m Machine) []Plugin {
	byName := make(map[string]*Plugin)
	for _, p := range plugins {
		name := p.GetPluginName()
		known := byName[name]
		if known == nil {
			known = &Plugin{Name: name, Ready: true}
			byName[name] = known
			for _, n := range needs(name) {
				n = m.look(n)
				known.Needs = append(known.Needs, n)
				known.Ready = known.Ready && (n.Found == nil || *n.Found)
			}
		}
		known.add(p, translator)
	}
	var all []Plugin
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}

// add adds what an instance of the plugin can.
func (k *Plugin) add(p volume.VolumePlugin, translator volume.Translator) {
	for _, spec := range specs() {
		source := volume.SourceTypes(spec)
		switch {
		case k.Name == csi.PluginName && translator.Plugin(spec) != "":
			k.Translated = union(k.Translated, source...)
		case !p.CanSupport(spec):
		case spec.Volume != nil:
			k.Inline = union(k.Inline, source...)
		default:
			k.PersistentVolume = union(k.PersistentVolume, source...)
		}
	}
	if able, ok := volume.AsPersistentVolume(p); ok {
		for _, mode := range able.GetAccessModes() {
			if !slices.Contains(k.AccessModes, mode) {
				k.AccessModes = append(k.AccessModes, mode)
			}
		}
	}
	_, attaches := volume.AsAttachable(p)
	_, blocks := volume.AsBlock(p)
	_, growsOnNode := volume.AsNodeExpandable(p)
	_, provisions := volume.AsProvisionable(p)
	for word, can := range map[string]bool{"attach": attaches, "block": blocks, "grow": growsOnNode || volume.CanExpand(p), "provision": provisions} {
		if can {
			k.Supports = union(k.Supports, word)
		}
	}
}

// union adds words to sorted ones.
func union(words []string, more ...string) []string {
	words = append(words, more...)
	slices.Sort(words)
	return slices.Compact(words)
}

// specs has a volume for each type of source of the API, inline and of a PersistentVolume.
func specs() (all []*volume.Spec) {
	for i := range reflect.TypeFor[v1.VolumeSource]().NumField() {
		v := &v1.Volume{Name: "v"}
		setField(reflect.ValueOf(&v.VolumeSource).Elem().Field(i))
		all = append(all, volume.NewSpecFromVolume(v))
	}
	for i := range reflect.TypeFor[v1.PersistentVolumeSource]().NumField() {
		pv := &v1.PersistentVolume{}
		setField(reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem().Field(i))
		all = append(all, volume.NewSpecFromPersistentVolume(pv, false))
	}
	return all
}

// setField has a pointer point to an empty value.
func setField(pointer reflect.Value) { pointer.Set(reflect.New(pointer.Type().Elem())) }

// Command returns the command that lists plugins.
func Command(out io.Writer, plugins func() ([]volume.VolumePlugin, volume.Translator, error)) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "plugins",
		Short: "List the volume plugins, what they can do and what this machine lacks",
		Long: "Prints for each type of volume the access modes, and whether podvol can attach it, hand\n" +
			"it out as a block device, have it grow with its claim, and provision it. LACKS are the\n" +
			"programs, file systems and modules of the kernel that its volumes need and that are not\n" +
			"found here; a question mark means that only the volume's driver tells (podvol csi).\n" +
			"-o wide adds all that they need, and the plugin's name. Nothing is started or loaded, and\n" +
			"no rights are needed. What only some volumes need, such as the mkfs of their file\n" +
			"system, is left out. Volumes persistentVolumeClaim and ephemeral are as their\n" +
			"PersistentVolume is.",
		Example: "  podvol plugins\n  podvol plugins -o wide",
		RunE: func(*cobra.Command, []string) error {
			all, translator, err := plugins()
			if err != nil {
				return err
			}
			return print(out, format, Of(all, translator, Machine{}))
		},
	}
	choice.AddOutput(c, &format, "table", "wide", "json", "yaml")
	return c
}

func print(out io.Writer, format string, plugins []Plugin) error {
	if format == "json" || format == "yaml" {
		return choice.Print(out, format, plugins)
	}
	return printTable(out, format == "wide", plugins)
}

// printTable prints a table that fits a terminal, unless it shall be wide.
func printTable(out io.Writer, wide bool, plugins []Plugin) error {
	columns := []table.Column{{Head: "SOURCE", Whole: true}, {Head: "MODES", Whole: true, Extra: 1}, {Head: "SUPPORTS", Extra: 2}, {Head: "LACKS"}}
	if wide {
		columns = append(columns, table.Column{Head: "NEEDS"}, table.Column{Head: "PLUGIN"}, table.Column{Head: "TRANSLATED"})
	}
	t := table.New(out, columns...)
	if wide {
		t.Unlimited()
	}
	var rows [][]string
	for _, p := range plugins {
		var lacks, needs []string
		for _, n := range p.Needs {
			needs = append(needs, n.Name)
			if n.Found == nil || !*n.Found {
				lacks = append(lacks, n.text())
			}
		}
		row := []string{strings.Join(union(slices.Clone(p.Inline), p.PersistentVolume...), ","), kubectlget.ShortModes(p.AccessModes), strings.Join(p.Supports, ","), strings.Join(lacks, ",")}
		if wide {
			row = append(row, strings.Join(needs, ","), p.Name, strings.Join(p.Translated, ","))
		}
		for i := range row {
			row[i] = table.Dash(row[i])
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(strings.ToLower(a[0]), strings.ToLower(b[0])) })
	return t.Print(rows...)
}
