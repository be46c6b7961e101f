// Search from a folder: a browser starts no worker for a page without a server, so its script runs
// in a hidden frame. The theme's search asks for this by the name `IFrameWorker`.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const inside = this.inside;
      inside.importScripts = async (...urls) => {
        for (const one of urls) await load(inside.document, new URL(one, url));
      };
      inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
      load(inside.document, url).then(() => {
        this.ready = true;
        this.waiting.forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (!this.ready) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;

  function load(page, url) {
    return new Promise((done, failed) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = failed;
      page.body.append(script);
    });
  }
}
