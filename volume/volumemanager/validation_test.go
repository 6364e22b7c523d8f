package volumemanager_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// tree is a part of a manifest.
type tree = map[string]any

// rulebook is testdata/validation/rules.yaml.
type rulebook struct {
	Bases              map[string]tree
	Upstream, Stricter []section
	Elsewhere          []struct{ Rule, Why string }
}

// section is what is valid, and the rules that it keeps.
type section struct {
	Of, Function string
	Valid        tree
	Rules        []rule
}

type rule struct {
	Rule, Field, Since string
	Breaks             tree
}

func readRules(t testing.TB) (book rulebook) {
	t.Helper()
	data, err := os.ReadFile("../../testdata/validation/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &book); err != nil {
		t.Fatal(err)
	}
	return book
}

// expanded returns a tree with its patterns written out.
func expanded(value any) any {
	switch value := value.(type) {
	case tree:
		if pattern, ok := value["pattern"].(string); ok {
			text := func(key string) string { s, _ := expanded(value[key]).(string); return s }
			return text("begin") + strings.Repeat(pattern, int(value["times"].(float64))) + text("end")
		}
		copied := tree{}
		for key, v := range value {
			copied[key] = expanded(v)
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, v := range value {
			copied[i] = expanded(v)
		}
		return copied
	}
	return value
}

// merged applies a JSON merge patch (RFC 7386).
func merged(target, patch tree) tree {
	result := maps.Clone(target)
	if result == nil {
		result = tree{}
	}
	for key, v := range patch {
		inner, ok := v.(tree)
		switch old, _ := result[key].(tree); {
		case v == nil:
			delete(result, key)
		case ok:
			result[key] = merged(old, inner)
		default:
			result[key] = v
		}
	}
	return result
}

// object returns the object that fragments make of their base, and where they are.
func (b rulebook) object(of string, fragments ...tree) (object tree, prefix string) {
	if of != "volume" {
		object = b.Bases[of]
		for _, fragment := range fragments {
			object = merged(object, fragment)
		}
		return object, ""
	}
	v := tree{"name": "v"}
	for _, fragment := range fragments {
		v = merged(v, fragment)
	}
	return merged(b.Bases["Pod"], tree{"spec": tree{"volumes": []any{v}}}), "spec.volumes[0]"
}

// validVolume returns the first valid volume of those that fit.
func (b rulebook) validVolume(t testing.TB, fits func(valid tree) bool) v1.Volume {
	t.Helper()
	for _, s := range b.Upstream {
		if s.Of != "volume" || !fits(s.Valid) {
			continue
		}
		object, _ := b.object(s.Of, expanded(s.Valid).(tree))
		pod, err, _ := validated(t, s.Of, object)
		if err != nil {
			t.Fatal(err)
		}
		return pod.Spec.Volumes[0]
	}
	t.Fatal("no valid volume fits")
	return v1.Volume{}
}

// validated returns why the library refuses an object; known is false if it has a
// field that this minor of the API lacks.
func validated(t rapid.TB, of string, object tree) (pod *v1.Pod, refused error, known bool) {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	decode := func(into any) bool {
		err := yaml.UnmarshalStrict(data, into)
		if err != nil && !strings.Contains(err.Error(), "unknown field") {
			t.Fatalf("%v in %s", err, data)
		}
		return err == nil
	}
	switch of {
	case "PersistentVolume":
		o := new(v1.PersistentVolume)
		known = decode(o)
		return nil, validation.PersistentVolume(o), known
	case "PersistentVolumeClaim":
		o := new(v1.PersistentVolumeClaim)
		known = decode(o)
		return nil, validation.PersistentVolumeClaim(o), known
	case "StorageClass":
		o := new(storagev1.StorageClass)
		known = decode(o)
		return nil, validation.StorageClass(o), known
	}
	pod = new(v1.Pod)
	known = decode(pod)
	return pod, validation.PodVolumes(pod), known
}

func faultsOf(t rapid.TB, err error) (faults []*volume.InvalidSpecError) {
	t.Helper()
	if err == nil {
		return nil
	}
	if volume.IsUncertain(err) {
		t.Errorf("%v does not say that nothing was done", err)
	}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		invalid, ok := errors.AsType[*volume.InvalidSpecError](e)
		if !ok {
			t.Fatalf("%v is no InvalidSpecError", e)
		}
		faults = append(faults, invalid)
	}
	return faults
}

func fieldsOf(faults []*volume.InvalidSpecError) (fields []string) {
	for _, f := range faults {
		if !slices.Contains(fields, f.Field) {
			fields = append(fields, f.Field)
		}
	}
	return fields
}

// within puts a field below another.
func within(prefix, field string) string { return strings.Trim(prefix+"."+field, ".") }

// What the API server refuses, and what podvol refuses beyond that, is refused for
// its field alone, by the library and by a manager that has touched nothing, and the
// error says whose it is and what would be right.
func TestEveryRuleOfTheAPI(t *testing.T) {
	book := readRules(t)
	w := newWorld(t)
	manager, _ := w.start()
	tried, unknown := 0, 0
	for _, s := range slices.Concat(book.Upstream, book.Stricter) {
		valid := expanded(s.Valid).(tree)
		base, prefix := book.object(s.Of, valid)
		if _, err, known := validated(t, s.Of, base); err != nil || !known {
			t.Errorf("%s: what is valid is refused (%v), or the API does not know it (%t)", s.Function, err, known)
			continue
		}
		for _, r := range s.Rules {
			broken, _ := book.object(s.Of, valid, expanded(r.Breaks).(tree))
			pod, err, known := validated(t, s.Of, broken)
			if !known {
				if unknown++; r.Since == "" {
					t.Errorf("%s: %s: the API knows no such field", s.Function, r.Rule)
				}
				continue
			}
			tried++
			name, field := s.Of+" "+s.Function+": "+r.Rule, within(prefix, r.Field)
			faults := faultsOf(t, err)
			if got := fieldsOf(faults); !slices.Equal(got, []string{field}) {
				t.Errorf("%s: refused %q, want %q (%v)", name, got, field, err)
				continue
			}
			for _, fault := range faults {
				checkWords(t, name, s.Of, pod, fault)
			}
			if pod == nil {
				continue
			}
			_, err = manager.SetUpPod(t.Context(), pod)
			if pod.UID == "" || strings.Contains(string(pod.UID), "/") {
				continue // refused before the rest is looked at
			}
			if got := fieldsOf(faultsOf(t, err)); !slices.Equal(got, []string{field}) {
				t.Errorf("%s: the manager refuses %q, want %q", name, got, field)
			}
		}
	}
	if calls := w.fake.Calls(); len(calls) > 0 {
		t.Errorf("the mounter was called: %v", calls)
	}
	if rows := manager.Explain(); len(rows) > 0 {
		t.Errorf("the manager knows of %v", rows)
	}
	w.assertClean()
	for _, e := range book.Elsewhere {
		if e.Rule == "" || e.Why == "" {
			t.Errorf("%+v gives no reason", e)
		}
	}
	t.Logf("%d rules tried, %d not known to this minor of the API", tried, unknown)
	if tried < 300 {
		t.Errorf("only %d rules were tried", tried)
	}
}

// advice is what an error says that would be right.
var advice = regexp.MustCompile(`must|needs?\b|use |set it|remove|rename|correct|give|only|put |name |is not one of|exactly|example|allowed|cannot|too long|is no |a lowercase|consist|own\b|is missing|not a valid|may not|can't|shorten`)

func checkWords(t *testing.T, name, of string, pod *v1.Pod, fault *volume.InvalidSpecError) {
	t.Helper()
	text := fault.Error()
	if !strings.Contains(text, fault.Field) || !advice.MatchString(fault.Reason) {
		t.Errorf("%s: %q does not name the field and what would be right", name, text)
	}
	if pod == nil || pod.Name == "" {
		return
	}
	owner := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if fault.Pod != owner || !strings.Contains(text, fmt.Sprintf("pod %q", owner.String())) {
		t.Errorf("%s: %q does not name the pod", name, text)
	}
	if of == "volume" && (fault.Volume != "v" || !strings.Contains(text, `volume "v"`)) {
		t.Errorf("%s: %q does not name the volume", name, text)
	}
}

// A pod of any valid volumes is accepted, and refused where one of them breaks any
// rule, for that rule alone.
func TestRandomPodsKeepOrBreakRules(t *testing.T) {
	book := readRules(t)
	var blocks []section
	for _, s := range slices.Concat(book.Upstream, book.Stricter) {
		if s.Of == "volume" {
			blocks = append(blocks, s)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		chosen := rapid.SliceOfN(rapid.SampledFrom(blocks), 1, 6).Draw(t, "volumes")
		broken := rapid.IntRange(0, len(chosen)-1).Draw(t, "broken")
		rule := rapid.SampledFrom(chosen[broken].Rules).Draw(t, "rule")
		fragments, mounts := make([]any, len(chosen)), make([]any, len(chosen))
		for i, s := range chosen {
			name := fmt.Sprintf("v%d", i)
			fragments[i] = merged(expanded(s.Valid).(tree), tree{"name": name})
			mounts[i] = tree{
				"name": name, "mountPath": "/" + name, "readOnly": rapid.Bool().Draw(t, "readOnly"),
				"subPath":          rapid.SampledFrom([]string{"", "a", "a/b..c"}).Draw(t, "subPath"),
				"mountPropagation": rapid.SampledFrom([]any{nil, "None", "HostToContainer"}).Draw(t, "propagation"),
			}
		}
		kind := rapid.SampledFrom([]string{"containers", "initContainers"}).Draw(t, "kind")
		pod := func() tree {
			spec := tree{"volumes": fragments, "containers": []any{tree{"name": "web"}}}
			return merged(book.Bases["Pod"], tree{"spec": merged(spec, tree{kind: []any{tree{"name": "mounts", "volumeMounts": mounts}}})})
		}
		if _, err, known := validated(t, "Pod", pod()); err != nil || !known {
			t.Fatalf("a valid pod is refused: %v", err)
		}
		fragments[broken] = merged(fragments[broken].(tree), expanded(rule.Breaks).(tree))
		_, err, known := validated(t, "Pod", pod())
		if !known && rule.Since != "" {
			return
		}
		want := within(fmt.Sprintf("spec.volumes[%d]", broken), rule.Field)
		if got := fieldsOf(faultsOf(t, err)); !slices.Equal(got, []string{want}) {
			t.Fatalf("%s: refused %q, want %q", rule.Rule, got, want)
		}
	})
}
