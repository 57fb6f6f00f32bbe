export async function referenceView(){ return null; }
