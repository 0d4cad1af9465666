package demo

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Capacity of the index service.
const (
	indexAtOnce     = 8                // requests; more are answered 429
	indexServeTime  = time.Millisecond // of a request: a service that did nothing would never be full
	indexRetryAfter = 1                // seconds, the least that the header can say
	indexMaxBody    = 1 << 20
)

// Entry is what the index service is told of a file.
type Entry struct {
	Path Path `json:"path"` // relative to the demo's directory
	Sum
}

// indexService is a small HTTP service with little capacity, as downstreams are. POST /index takes an
// Entry, where the same path again replaces it, so that a task that runs twice does no harm; GET /index
// tells how many there are, and takes a place like any request.
type indexService struct {
	server *http.Server
	url    string
	atOnce chan struct{}

	mu   sync.Mutex // guards following
	sums map[Path]Sum
}

// startIndex listens on a free port of the loopback.
func startIndex() (*indexService, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the index service: %w", err)
	}
	s := &indexService{
		url:    "http://" + lis.Addr().String() + "/index",
		atOnce: make(chan struct{}, indexAtOnce),
		sums:   map[Path]Sum{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /index", s.limited(s.post))
	mux.HandleFunc("GET /index", s.limited(s.get))
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go s.server.Serve(lis) // ends with stop
	return s, nil
}

func (s *indexService) stop() { s.server.Close() }

// limited lets a request in if there is room, and serves it in the time that serving takes.
func (s *indexService) limited(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.atOnce <- struct{}{}:
			defer func() { <-s.atOnce }()
		default:
			w.Header().Set("Retry-After", fmt.Sprint(indexRetryAfter))
			http.Error(w, fmt.Sprintf("more than %d requests at once", indexAtOnce), http.StatusTooManyRequests)
			return
		}
		select {
		case <-time.After(indexServeTime):
			serve(w, r)
		case <-r.Context().Done():
		}
	}
}

// get answers with the number of files.
func (s *indexService) get(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, s.count())
}

func (s *indexService) post(w http.ResponseWriter, r *http.Request) {
	var e Entry
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, indexMaxBody))
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.sums[e.Path] = e.Sum
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// totals returns how many files the service knows, their bytes, and the digest: SHA-256 over the lines
// "<hex>  <path>\n", sorted bytewise by path.
func (s *indexService) totals() (files, size int64, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := sha256.New()
	for _, p := range slices.Sorted(maps.Keys(s.sums)) { // strings compare bytewise
		fmt.Fprintf(h, "%s  %s\n", s.sums[p].SHA256, string(p))
		size += s.sums[p].Bytes
	}
	return int64(len(s.sums)), size, hex.EncodeToString(h.Sum(nil))
}

func (s *indexService) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sums)
}
