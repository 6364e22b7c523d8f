package release_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumesource"
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
		for _, server := range []string{"server", "SERVER.", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "[FE80::1%enp1s0]", "other"} {
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
	volumes := slices.DeleteFunc(sourcesOf(), func(pv *v1.PersistentVolume) bool { // what the plugin refuses is never released
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		plugin, err := plugins.FindPluginBySpec(spec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = volumesource.SharesData(plugin, spec, spec)
		_, _, badPlace := volumesource.Place(plugin, spec)
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
	verifier := &release.Verifier{Objects: pvbuild.StoreOf(t, objects...), Plugins: plugins}
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
			if shares, err := volumesource.SharesData(plugin, spec, otherSpec); err != nil {
				t.Fatal(err)
			} else if shares {
				want = append(want, other.GetName())
			}
		}
		err := verifier.VerifyReleased(t.Context(), pv)
		if inUse, ok := errors.AsType[*release.InUseError](err); ok {
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

// oddExports are what whoever makes a pod can write and podvol mounts on no node,
// and of them those that mount(8) may take for /exports/pv1 of 10.0.0.1.
func oddExports() (strange, same []v1.VolumeSource) {
	for _, server := range []string{"", "ser ver", "other:2049", "[fd00::1", "a,b", "10.1.1", "0x7f.1", "1e3", "-o", "\n", "other\x00"} {
		for _, path := range []string{"/", "/exports/pv1", "/exports", "/exports/pv1/sub"} {
			strange = append(strange, ofExport(server, path))
		}
	}
	for _, path := range []string{"", "relative", "/a/../b", "/exports/pv1/../pv2", "/exports/pv1\n", "/\x00", "/exports/pv1x\x00", "/.podvol/marks", "/exports/.podvol"} {
		for _, server := range []string{"other", "server", "fd00::1"} {
			strange = append(strange, ofExport(server, path))
		}
	}
	strange = append(strange, ofExport("10.0.0.1", "/exports/pv2/../pv3"), ofExport("10.0.0.1", "/b/../c"), ofExport("10.0.0.1", "/exports/pv1\n"))
	for _, server := range []string{"10.1", "10.0.1", "012.0.0.1", "0xa.0.0.1", "167772161", "10.0.0.01", "10.0.0.1:2049", "[10.0.0.1]", "10.0.0.1,other", " 10.0.0.1", "10.0.0.1\n"} {
		same = append(same, ofExport(server, "/exports/pv1"), ofExport(server, "/exports/x/../pv1/sub"), ofExport(server, "/exports"))
	}
	for _, path := range []string{"/exports/x/../pv1", "exports/pv1", "/exports/pv1/..", "/exports/pv1\x00x", "/exports/pv1/\n", ""} {
		same = append(same, ofExport("10.0.0.1", path), ofExport("::ffff:10.0.0.1", path))
	}
	for _, whole := range []string{ // a server with part of the path, or more, in it
		"10.0.0.1:/exports/pv1/a", "10.0.0.1:/exports/pv1", "10.0.0.1:/exports/x/../pv1/a", "10.0.0.1:exports/pv1/a", "10.0.0.1:/exports/pv1/a:/c",
		"10.0.0.1:2049:/exports/pv1/a", "10.0.0.1:2049/exports/pv1/a", "10.0.0.1.:/exports/pv1/a", "[10.0.0.1]:/exports/pv1/a", "10.1:/exports/pv1/a",
		"[::FFFF:10.0.0.1]:/exports/pv1/a", "[::FFFF:A00:1%eth0]:/exports/pv1/a", "other,10.0.0.1:/exports/pv1/a", "10.0.0.1,other:/exports/pv1/a",
		"other:/x,10.0.0.1:/exports/pv1/a", "10.0.0.1:/exports/pv1,other:/x", "other:/x 10.0.0.1:/exports/pv1 other:/x",
		"nfs://10.0.0.1/exports/pv1/a", "NFS://10.0.0.1:2049/exports%2Fpv1/a", "nfs://u@10.0.0.1/exports/pv1?rw=1", "//10.0.0.1/exports/pv1/a",
	} {
		same = append(same, ofExport(whole, "/b"), ofExport(whole, "b"), ofExport(whole, ""))
	}
	for _, whole := range []string{
		"10.0.0.1:/exports/pv2/a", "10.0.0.1:/exports/pv1x/a", "10.0.0.1:/b:/exports/x", "10.0.0.2:/exports/pv1/a", "other:/exports/pv1/a",
		"10.0.0.1:2049", "[10.0.0.1]:2049", "10.0.0.1:", "nfs://10.0.0.1/exports/pv2", "nfs://other/exports/pv1", "[fd00::1%eth0]:/exports/pv1/a",
	} {
		strange = append(strange, ofExport(whole, "/b"), ofExport(whole, "b"))
	}
	for _, server := range []string{"10.0.0.1%eth0", "10.0.0.1.%eth0", "10.1%eth0", "[10.0.0.1%eth0]:2049", "::ffff:10.0.0.1%eth0,", "\t[::FFFF:10.0.0.1%25eth0]", "::ffff:10.0.0.1:2049"} {
		same = append(same, ofExport(server, "/exports/pv1"), ofExport(server, "/exports"))
	}
	return strange, same
}

// oddExports6 are such sources for /exports/pv1 of fd00::1.
func oddExports6() (strange, same []v1.VolumeSource) {
	for _, server := range []string{"[fd00::2%eth0]:2049", "fd00::2%eth0,other", "fd00", "fd00:", "1", "fd00::1:0:1", "fd00::1:2049", "[fd00::2]:/exports/pv1"} {
		strange = append(strange, ofExport(server, "/exports/pv1"), ofExport(server, "exports/pv1"))
	}
	strange = append(strange, ofExport("fd00::1%eth0", "/exports/pv2"), ofExport("[FD00::1%eth0]:2049", "/exports/pv2"))
	for _, server := range []string{
		"fd00::1%eth0", "[fd00::1%eth0]", "FD00:0::1%ETH0", "[fd00::1%eth0", "fd00::1%eth0]", "[fd00::1%eth0]:2049", "fd00::1%25eth0", "fd00::1%a%b", "fd00::1%",
		"fd00::1.", "fd00::1%eth0.", " fd00::1", "fd00::1%eth0,other", "other fd00::1%eth0", "[fd00::1],other", "fd00::1:22049", "fd00:0:0:0:0:0:0:1:2049", "[fd00::1]:2049", "[[fd00::1]]",
	} {
		same = append(same, ofExport(server, "/exports/pv1"), ofExport(server, "/exports/x/../pv1/sub"), ofExport(server, "/exports"))
	}
	for _, whole := range []string{"[fd00::1]:/exports/pv1/a", "[fd00::1%eth0]:/exports/pv1/a", "[FD00:0::1]:2049:/exports/pv1/a", "fd00::1%eth0:/exports/pv1/a", "nfs://[fd00::1]:2049/exports/pv1/a"} {
		same = append(same, ofExport(whole, "/b"), ofExport(whole, "b"))
	}
	// mount(8) is given both as one text.
	return strange, append(same, ofExport("[fd00", ":1]:/exports/pv1"), ofExport("[fd00::1%eth0", "]:/exports/pv1"), ofExport("[fd00::1%eth0]:", "exports/pv1"))
}

// Whatever somebody writes into a pod or a PersistentVolume stops the reclaim only
// of what it may be itself.
func TestAnOddSourceKeepsOnlyWhatItMayBe(t *testing.T) {
	strange, same := oddExports()
	keepOnly(t, "10.0.0.1", strange, same)
	strange, same = oddExports6()
	keepOnly(t, "fd00::1", strange, same)
}

// keepOnly has every source be a pod's and a PersistentVolume's beside the released
// /exports/pv1 of server.
func keepOnly(t *testing.T, server string, strange, same []v1.VolumeSource) {
	pv := released(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Server = server })
	others := func(source v1.VolumeSource) []metav1.Object {
		unbound := exportVolume("odd", source.NFS.Path)
		unbound.Spec.NFS.Server = source.NFS.Server
		return []metav1.Object{podWith("odd", source), unbound}
	}
	all := []metav1.Object{pv}
	for i, source := range strange {
		for _, other := range others(source) {
			if err := verifier(t, pvbuild.StoreOf(t, pv, other)).VerifyReleased(t.Context(), pv); err != nil {
				t.Errorf("%T of %+v: %v", other, source.NFS, err)
			}
			other.SetName(fmt.Sprint("odd", i))
			all = append(all, other)
		}
	}
	if err := verifier(t, pvbuild.StoreOf(t, all...)).VerifyReleased(t.Context(), pv); err != nil {
		t.Errorf("all of them: %v", err)
	}
	for _, source := range same {
		for _, other := range others(source) {
			err := verifier(t, pvbuild.StoreOf(t, append(all, other)...)).VerifyReleased(t.Context(), pv)
			if _, inUse := errors.AsType[*release.InUseError](err); err == nil || !inUse && !strings.Contains(err.Error(), "treating it as used") || !strings.Contains(err.Error(), "odd") {
				t.Errorf("%T of %+v: %v", other, source.NFS, err)
			}
		}
	}
}

// TestReleaseFigures measures how long it takes to see of many released volumes
// that nobody uses them, as many at a time as are reclaimed together:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume/release -run ReleaseFigures -v
func TestReleaseFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
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
	releases := verifier(t, pvbuild.StoreOf(t, objects...))
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
	figures.Report(t, figures.Row{What: fmt.Sprintf("that nobody uses %d released volumes, among as many pods", count), Unit: figures.Wall, Ours: took.Seconds(), Limit: 3})
}
