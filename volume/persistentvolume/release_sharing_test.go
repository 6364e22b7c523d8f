package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/figures"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// sourcesOf returns volumes of every kind whose paths and servers are near each
// other in all ways.
func sourcesOf() (volumes []*v1.PersistentVolume) {
	add := func(set func(*v1.PersistentVolume)) {
		pv := released(set)
		pv.Name = fmt.Sprint("pv", len(volumes))
		pv.UID = types.UID(pv.Name)
		volumes = append(volumes, pv)
	}
	for _, path := range []string{"/", "/a", "/a/", "/a/b", "/a//b/.", "/a/b/c", "/ab", "/a/../ab", "/b", "//a"} {
		for _, server := range []string{"server", "SERVER.", "10.0.0.1", "::ffff:10.0.0.1", "other"} {
			add(func(pv *v1.PersistentVolume) { pv.Spec.NFS = &v1.NFSVolumeSource{Server: server, Path: path} })
		}
		add(func(pv *v1.PersistentVolume) {
			pv.Spec.NFS, pv.Spec.HostPath = nil, &v1.HostPathVolumeSource{Path: path}
		})
		add(func(pv *v1.PersistentVolume) {
			pv.Spec.NFS, pv.Spec.Local = nil, &v1.LocalVolumeSource{Path: path}
		})
	}
	for _, path := range []string{"a", "a/b", ".", ""} {
		add(func(pv *v1.PersistentVolume) {
			pv.Spec.NFS, pv.Spec.HostPath = nil, &v1.HostPathVolumeSource{Path: path}
		})
	}
	return volumes
}

// Who shares the data of a volume is found by where it is, and is the same as
// when it is compared with every other.
func TestThoseWhoShareDataAreFoundAsByComparingAll(t *testing.T) {
	plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{nfs.New(nfs.Config{}), hostpath.New(hostpath.Config{}), local.New(local.Config{})}, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	volumes := slices.DeleteFunc(sourcesOf(), func(pv *v1.PersistentVolume) bool { // what the plugin refuses makes it refuse all
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		plugin, err := plugins.FindPluginBySpec(spec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = volume.SharesData(plugin, spec, spec)
		_, _, badPlace := volume.SourcePlace(plugin, spec)
		if (err == nil) != (badPlace == nil) {
			t.Errorf("%+v: compared: %v, placed: %v", pv.Spec.PersistentVolumeSource, err, badPlace)
		}
		return err != nil
	})
	objects := make([]metav1.Object, 0, 2*len(volumes))
	for _, pv := range volumes {
		objects = append(objects, pv)
		pod := podWith("uses-"+pv.Name, v1.VolumeSource{NFS: pv.Spec.NFS, HostPath: pv.Spec.HostPath})
		if pv.Spec.Local == nil {
			objects = append(objects, pod)
		}
	}
	verifier := &persistentvolume.ReleaseVerifier{Objects: storeOf(t, objects...), Plugins: plugins}
	sharing := 0
	for _, pv := range volumes {
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		plugin, _ := plugins.FindPluginBySpec(spec)
		var want, got []string
		for _, other := range objects {
			otherSpec := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false)
			switch other := other.(type) {
			case *v1.PersistentVolume:
				otherSpec = volume.NewSpecFromPersistentVolume(other, false)
			case *v1.Pod:
				otherSpec = volume.NewSpecFromVolume(&other.Spec.Volumes[0])
			}
			if other == metav1.Object(pv) || !plugin.CanSupport(otherSpec) {
				continue
			}
			if shares, err := volume.SharesData(plugin, spec, otherSpec); err != nil {
				t.Fatal(err)
			} else if shares {
				want = append(want, other.GetName())
			}
		}
		err := verifier.VerifyReleased(t.Context(), pv)
		if inUse, ok := errors.AsType[*persistentvolume.InUseError](err); ok {
			for _, use := range inUse.Uses {
				got = append(got, use.By.Name)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: used by %v, want %v", pv.Spec.PersistentVolumeSource, got, want)
		}
		sharing += len(want)
	}
	if sharing == 0 {
		t.Error("none shares data with another")
	}
}

// TestReleaseFigures measures how long it takes to see of many released volumes
// that nobody uses them, as many at a time as are reclaimed together:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume -run ReleaseFigures -v
func TestReleaseFigures(t *testing.T) {
	slack, asserted := figures.Slack(t)
	count := 200
	if asserted {
		count = 2000
	}
	objects := make([]metav1.Object, 0, 2*count)
	for i := range count {
		objects = append(objects, released(func(pv *v1.PersistentVolume) {
			pv.Name = fmt.Sprint("pv", i)
			pv.UID = types.UID(pv.Name)
			pv.Spec.NFS.Path = "/exports/pods/" + pv.Name
			pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint("uid", i))
		}), podWith(fmt.Sprint("p", i), ofClaim(fmt.Sprint("other", i)), ofExport("server", fmt.Sprint("/exports/others/", i))))
	}
	releases := verifier(t, storeOf(t, objects...))
	volumes := make(chan *v1.PersistentVolume)
	began := time.Now()
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for pv := range volumes {
				if err := releases.VerifyReleased(context.Background(), pv); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, o := range objects {
		if pv, ok := o.(*v1.PersistentVolume); ok {
			volumes <- pv
		}
	}
	close(volumes)
	workers.Wait()
	took := time.Since(began)
	t.Logf("%d released volumes among as many pods: %v (limit for 2000: 3s)", count, took)
	if asserted && took.Seconds() > 3*slack {
		t.Errorf("%d released volumes: %v", count, took)
	}
}
