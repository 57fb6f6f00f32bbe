export function liveView(){ return {node: document.createElement("div")}; }
