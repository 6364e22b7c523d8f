package release

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podstate"
	"github.com/podvol/podvol/volume/volumesource"
)

// usage has the possible users of volumes' data, as the API told at one time, in
// such an order that one volume's users are found without a look at all.
type usage struct {
	claims   map[types.NamespacedName]*v1.PersistentVolumeClaim
	byUID    map[types.UID][]*v1.PersistentVolumeClaim
	byVolume map[string][]*v1.PersistentVolumeClaim // by what they name
	// clones are claims whose volume is being copied, by the claim that it is copied from.
	clones map[types.NamespacedName][]*v1.PersistentVolumeClaim
	// users are all PersistentVolumes, then the volumes of pods that have not ended;
	// byClaim are the ones with a claim.
	users   []*user
	byClaim map[types.NamespacedName][]*user

	mu     sync.Mutex
	places map[string]*places // by plugin, once they were asked for
}

// user is a PersistentVolume, or a volume of a pod.
type user struct {
	order int
	name  string
	pod   *v1.Pod // nil for a PersistentVolume
	claim string  // the name, where it is a claim's
	spec  *volume.Spec
}

func (u *user) String() string {
	if u.pod == nil {
		return fmt.Sprintf("PersistentVolume %q", u.name)
	}
	return fmt.Sprintf("volume %q of pod \"%s/%s\"", u.name, u.pod.Namespace, u.pod.Name)
}

// readUsage reads claims, volumes and pods, in this order.
func readUsage(ctx context.Context, live objects.Reader) (*usage, error) {
	claims, err := objects.List[*v1.PersistentVolumeClaim](ctx, live, pvapi.KindClaim, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	volumes, err := objects.List[*v1.PersistentVolume](ctx, live, pvapi.KindVolume, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	pods, err := objects.List[*v1.Pod](ctx, live, pvapi.KindPod, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	all := &usage{
		claims: make(map[types.NamespacedName]*v1.PersistentVolumeClaim, len(claims)), byUID: make(map[types.UID][]*v1.PersistentVolumeClaim, len(claims)),
		byVolume: make(map[string][]*v1.PersistentVolumeClaim, len(claims)), byClaim: make(map[types.NamespacedName][]*user, len(pods)),
		users: make([]*user, 0, len(volumes)+len(pods)), places: make(map[string]*places), clones: make(map[types.NamespacedName][]*v1.PersistentVolumeClaim),
	}
	for _, claim := range claims {
		all.claims[pvapi.NameOf(claim)] = claim
		all.byUID[claim.UID] = append(all.byUID[claim.UID], claim)
		if claim.Spec.VolumeName != "" {
			all.byVolume[claim.Spec.VolumeName] = append(all.byVolume[claim.Spec.VolumeName], claim)
		}
		if source, _ := pvapi.ClonedClaim(claim); pvapi.IsCloning(claim) {
			all.clones[source] = append(all.clones[source], claim)
		}
	}
	for _, pv := range volumes {
		all.add(&user{name: pv.Name, spec: volume.NewSpecFromPersistentVolume(pv, false)})
	}
	for _, pod := range pods {
		all.addPod(pod)
	}
	return all, nil
}

func (all *usage) add(u *user) {
	u.order = len(all.users)
	all.users = append(all.users, u)
}

func (all *usage) addPod(pod *v1.Pod) {
	if podstate.HasEnded(pod) {
		return
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		claim, ok := claimbinding.ClaimOf(pod, v)
		if !ok {
			all.add(&user{name: v.Name, pod: pod, spec: volume.NewSpecFromVolume(v)})
			continue
		}
		u := &user{name: v.Name, pod: pod, claim: claim.Name}
		all.add(u)
		all.byClaim[claim] = append(all.byClaim[claim], u)
	}
}

// claimsOf returns the claims that a volume was bound to and those that name it,
// each once.
func (all *usage) claimsOf(pv *v1.PersistentVolume) []*v1.PersistentVolumeClaim {
	claims := slices.Clone(all.byUID[pv.Spec.ClaimRef.UID])
	for _, claim := range all.byVolume[pv.Name] {
		if claim.UID != pv.Spec.ClaimRef.UID {
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimNamesOf returns the names of claims that may give a pod the volume, each
// once.
func (all *usage) claimNamesOf(pv *v1.PersistentVolume) []types.NamespacedName {
	names := []types.NamespacedName{{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}}
	for _, claim := range all.byVolume[pv.Name] {
		if pvapi.NameOf(claim) != names[0] {
			names = append(names, pvapi.NameOf(claim))
		}
	}
	return names
}

// near returns the users that may show the data of a volume, in no order; no
// others without a claim do.
func (all *usage) near(plugin volume.VolumePlugin, spec *volume.Spec) ([]*user, error) {
	on, at, err := volumesource.Place(plugin, spec)
	if err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	known := all.places[plugin.GetPluginName()]
	if known == nil {
		known = all.placesOf(plugin)
		all.places[plugin.GetPluginName()] = known
	}
	return known.near(place{on, at}), nil
}

// places are where the data of one plugin's volumes is.
type places struct {
	at    map[place][]*user
	below map[place][]*user
	// odd are those whose place the plugin cannot tell: they are compared with every
	// volume.
	odd []*user
}

// place is a path on something, as a server.
type place struct{ on, path string }

func (p place) above() (place, bool) {
	dir := path.Dir(p.path)
	return place{p.on, dir}, dir != p.path
}

func (all *usage) placesOf(plugin volume.VolumePlugin) *places {
	known := &places{at: make(map[place][]*user, len(all.users)), below: make(map[place][]*user)}
	for _, u := range all.users {
		if u.spec == nil || !plugin.CanSupport(u.spec) {
			continue
		}
		on, at, err := volumesource.Place(plugin, u.spec)
		if err != nil {
			known.odd = append(known.odd, u)
			continue
		}
		p := place{on, at}
		known.at[p] = append(known.at[p], u)
		for p, more := p.above(); more; p, more = p.above() {
			known.below[p] = append(known.below[p], u)
		}
	}
	return known
}

// near returns the users at a place, above it, below it, and possible ones.
func (known *places) near(p place) []*user {
	found := slices.Concat(known.odd, known.at[p], known.below[p])
	for p, more := p.above(); more; p, more = p.above() {
		found = append(found, known.at[p]...)
	}
	return found
}
