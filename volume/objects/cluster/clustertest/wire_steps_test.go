package clustertest_test

// step is a request and its answer.
type step struct {
	what, method, path, body string
	want                     string
	inMemory                 string // the answer in memory, where that is a simpler one
}

const (
	maps   = "/api/v1/namespaces/ops/configmaps"
	nodes  = "/api/v1/nodes"
	pods   = "/api/v1/namespaces/ops/pods"
	claims = "/api/v1/namespaces/ops/persistentvolumeclaims"
	pvs    = "/api/v1/persistentvolumes"
	// initial asks a watch for what there is, as informers do.
	initial = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
)

func configMap(name, more string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ops","name":"` + name + `"` + more + `}}`
}

func node(more string) string {
	return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"` + more + `}`
}

func steps() []step {
	var all []step
	for _, table := range [][]step{writes(), deletions(), lists(), watches(), statuses(), pending()} {
		all = append(all, table...)
	}
	return all
}

func writes() []step {
	return []step{
		{what: "get what is missing", method: "GET", path: maps + "/app", want: "404 Failure NotFound configmaps/app"},
		{what: "get in a missing namespace", method: "GET", path: "/api/v1/namespaces/none/configmaps/app", want: "404 Failure NotFound configmaps/app"},
		{what: "get of an unknown group", method: "GET", path: "/apis/example.com/v1/x", want: "404 404 page not found"},
		{what: "create", method: "POST", path: maps, body: configMap("app", ""), want: "201 ConfigMap/app"},
		{what: "create again", method: "POST", path: maps, body: configMap("app", ""), want: "409 Failure AlreadyExists configmaps/app"},
		{what: "create without a name", method: "POST", path: maps, body: configMap("", ""), want: "422 Failure Invalid ConfigMap/ metadata.name"},
		{what: "create with a bad name", method: "POST", path: maps, body: configMap("a_B", ""), want: "422 Failure Invalid ConfigMap/a_B metadata.name"},
		{what: "create in another namespace", method: "POST", path: "/api/v1/namespaces/dev/configmaps", body: configMap("x", ""), want: "400 Failure BadRequest"},
		{what: "get", method: "GET", path: maps + "/app", want: "200 ConfigMap/app"},
		{what: "update what is missing", method: "PUT", path: maps + "/none", body: configMap("none", ""), want: "404 Failure NotFound configmaps/none"},
		{what: "update without version", method: "PUT", path: maps + "/app", body: configMap("app", `,"labels":{"a":"b"}`), want: "200 ConfigMap/app map[a:b]"},
		{what: "update of an old version", method: "PUT", path: maps + "/app", body: configMap("app", `,"resourceVersion":"$old"`), want: "409 Failure Conflict configmaps/app"},
		{what: "update of another UID", method: "PUT", path: maps + "/app", body: configMap("app", `,"uid":"another"`), want: "409 Failure Conflict configmaps/app"},
		{what: "update of another name", method: "PUT", path: maps + "/app", body: configMap("other", ""), want: "400 Failure BadRequest"},
	}
}

func deletions() []step {
	return []step{
		{what: "update with a finalizer", method: "PUT", path: maps + "/app", body: configMap("app", `,"finalizers":["example.com/a"]`), want: "200 ConfigMap/app"},
		{what: "delete another UID", method: "DELETE", path: maps + "/app", body: `{"preconditions":{"uid":"another"}}`, want: "409 Failure Conflict ConfigMap/app"},
		{what: "delete an old version", method: "DELETE", path: maps + "/app", body: `{"preconditions":{"resourceVersion":"$old"}}`, want: "409 Failure Conflict ConfigMap/app"},
		{what: "delete what is missing", method: "DELETE", path: maps + "/none", want: "404 Failure NotFound configmaps/none"},
		{what: "delete what has a finalizer", method: "DELETE", path: maps + "/app", body: `{"preconditions":{"uid":"$uid"}}`, want: "200 ConfigMap/app deleting"},
		{what: "delete it again", method: "DELETE", path: maps + "/app", want: "200 ConfigMap/app deleting"},
		{what: "update with more finalizers", method: "PUT", path: maps + "/app", body: configMap("app", `,"finalizers":["example.com/a","example.com/b"]`), want: "422 Failure Invalid ConfigMap/app metadata.finalizers"},
		{what: "update without finalizers", method: "PUT", path: maps + "/app", body: configMap("app", ""), want: "200 ConfigMap/app deleting"},
		{what: "get what is gone", method: "GET", path: maps + "/app", want: "404 Failure NotFound configmaps/app"},
	}
}

func lists() []step {
	return []step{
		{what: "create a", method: "POST", path: maps, body: configMap("a", ""), want: "201 ConfigMap/a"},
		{what: "create b", method: "POST", path: maps, body: configMap("b", ""), want: "201 ConfigMap/b"},
		{what: "create c with a UID", method: "POST", path: maps, body: configMap("c", `,"uid":"mine"`), want: "201 ConfigMap/c"},
		{what: "delete it by that UID", method: "DELETE", path: maps + "/c", body: `{"preconditions":{"uid":"mine"}}`, want: "409 Failure Conflict ConfigMap/c"},
		{what: "delete it by its own", method: "DELETE", path: maps + "/c", body: `{"preconditions":{"uid":"$uid"}}`, want: "200 Success configmaps/c which had a UID"},
		{what: "list one", method: "GET", path: maps + "?fieldSelector=metadata.name%3Db", want: "200 ConfigMapList /b"},
		{what: "list none", method: "GET", path: maps + "?fieldSelector=metadata.name%3Dnone", want: "200 ConfigMapList"},
		{what: "list a page", method: "GET", path: maps + "?limit=1", want: "200 ConfigMapList /a and more"},
		{what: "list the next page", method: "GET", path: maps + "?limit=1&continue=$next", want: "200 ConfigMapList /b"},
		{what: "list a page that there is not", method: "GET", path: maps + "?continue=x", want: "400 Failure BadRequest"},
		{what: "list a page of a cache", method: "GET", path: maps + "?limit=1&resourceVersion=0", want: "200 ConfigMapList /a /b"},
		{what: "list what is to come", method: "GET", path: maps + "?resourceVersion=999999999&resourceVersionMatch=NotOlderThan", want: "504 Failure Timeout"},
	}
}

func watches() []step {
	const b = maps + "?watch=1&fieldSelector=metadata.name%3Db"
	return []step{
		{what: "watch", method: "WATCH", path: b, want: "ADDED ConfigMap/b"},
		{what: "watch with bookmarks", method: "WATCH", path: b + "&allowWatchBookmarks=true", want: "ADDED ConfigMap/b; BOOKMARK ConfigMap/ end of initial events"},
		{what: "watch from a cache", method: "WATCH", path: b + "&resourceVersion=0&allowWatchBookmarks=true", want: "ADDED ConfigMap/b; BOOKMARK ConfigMap/ end of initial events"},
		{what: "watch with initial events", method: "WATCH", path: b + initial + "&allowWatchBookmarks=true", want: "ADDED ConfigMap/b; BOOKMARK ConfigMap/ end of initial events"},
		{what: "watch with initial events, but no bookmarks", method: "WATCH", path: b + initial, want: "ADDED ConfigMap/b"},
		{what: "watch what is missing", method: "WATCH", path: maps + "?watch=1&fieldSelector=metadata.name%3Dnone" + initial + "&allowWatchBookmarks=true", want: "BOOKMARK ConfigMap/ end of initial events"},
		{what: "watch with initial events of any version", method: "WATCH", path: b + "&sendInitialEvents=true&allowWatchBookmarks=true", want: "422 Failure Invalid ListOptions/ resourceVersionMatch"},
		{what: "watch from a version", method: "WATCH", path: b + "&resourceVersion=$old", want: "ADDED ConfigMap/b"},
	}
}

func statuses() []step {
	return []step{
		{what: "create a node with a status", method: "POST", path: nodes, body: node(`},"status":{"volumesInUse":["a"]}`), want: "201 Node/n1 [a]"},
		{what: "update the status of an old version", method: "PUT", path: nodes + "/n1/status", body: node(`,"resourceVersion":"1"}`), want: "409 Failure Conflict nodes/n1"},
		{what: "update the status, and labels", method: "PUT", path: nodes + "/n1/status", body: node(`,"labels":{"a":"b"}},"status":{"volumesInUse":["b"]}`), want: "200 Node/n1 [b] map[a:b]"},
		{what: "update the status of what is missing", method: "PUT", path: nodes + "/n2/status", body: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2"}}`, want: "404 Failure NotFound nodes/n2"},
		{what: "patch the status", method: "PATCH", path: nodes + "/n1/status", body: `{"status":{"volumesInUse":["c"]}}`, want: "200 Node/n1 [c] map[a:b]"},
		{what: "patch labels past the status", method: "PATCH", path: nodes + "/n1/status", body: `{"metadata":{"labels":{"c":"d"}}}`, want: "200 Node/n1 [c] map[a:b c:d]"},
		{what: "patch labels", method: "PATCH", path: nodes + "/n1", body: `{"metadata":{"labels":{"a":null}},"status":{"volumesInUse":["d"]}}`, want: "200 Node/n1 [c] map[c:d]"},
		{what: "patch what is missing", method: "PATCH", path: nodes + "/n2", body: `{}`, want: "404 Failure NotFound nodes/n2"},
		{what: "update the node", method: "PUT", path: nodes + "/n1", body: node(`},"status":{"volumesInUse":["e"]}`), want: "200 Node/n1 [c]"},
	}
}

// pending are kinds whose status is not their creator's to say. In memory there is
// no admission, which protects volumes and claims by finalizers, and no time for
// pods to end.
func pending() []step {
	return []step{
		{what: "create a PersistentVolume", method: "POST", path: pvs, want: "201 PersistentVolume/pv Pending",
			body: `{"metadata":{"name":"pv"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}},"status":{"phase":"Bound"}}`},
		{what: "delete the PersistentVolume, which is protected", method: "DELETE", path: pvs + "/pv", want: "200 PersistentVolume/pv deleting Pending", inMemory: "200 Success persistentvolumes/pv which had a UID"},
		{what: "create a claim", method: "POST", path: claims, want: "201 PersistentVolumeClaim/c Pending",
			body: `{"metadata":{"name":"c"},"spec":{"resources":{"requests":{"storage":"1Gi"}},"accessModes":["ReadWriteOnce"]},"status":{"phase":"Bound"}}`},
		{what: "delete the claim, which is protected", method: "DELETE", path: claims + "/c", want: "200 PersistentVolumeClaim/c deleting Pending", inMemory: "200 Success persistentvolumeclaims/c which had a UID"},
		{what: "create a pod", method: "POST", path: pods, want: "201 Pod/p Pending",
			body: `{"metadata":{"name":"p"},"spec":{"nodeName":"n1","containers":[{"name":"a","image":"b"}]},"status":{"phase":"Running"}}`},
		{what: "list the pods of its node", method: "GET", path: "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", want: "200 PodList /p"},
		{what: "list the pods of another node", method: "GET", path: "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", want: "200 PodList"},
		{what: "watch the pods of its node", method: "WATCH", path: "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1", want: "ADDED Pod/p Pending"},
		{what: "delete the pod, which is given time", method: "DELETE", path: pods + "/p", want: "200 Pod/p deleting Pending", inMemory: "200 Success pods/p which had a UID"},
		{what: "delete the pod now", method: "DELETE", path: pods + "/p", body: `{"gracePeriodSeconds":0}`, want: "200 Pod/p deleting Pending", inMemory: "404 Failure NotFound pods/p"},
		{what: "get the pod", method: "GET", path: pods + "/p", want: "404 Failure NotFound pods/p"},
	}
}
